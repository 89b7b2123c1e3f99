-- Every query of the ledger, by name. A line `-- name: what it is for` starts one.

-- get_meta: a value that belongs to the run as a whole
SELECT value FROM meta WHERE key = :key;

-- put_meta: remembers one
INSERT INTO meta (key, value) VALUES (:key, :value);

-- remember_meta: remembers one that must not change
INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO NOTHING;

-- add_task: makes a task due; a task that is there already stays as it is
INSERT INTO tasks (kind, arm, subject, phase, priority)
VALUES (:kind, :arm, :subject, :phase, :priority)
ON CONFLICT (kind, arm, subject, phase) DO NOTHING;

-- claim_task: takes the most urgent ready task
UPDATE tasks SET state = 'claimed', attempt = attempt + 1, claimed_by = :worker
WHERE id = (SELECT id FROM tasks WHERE state = 'ready' ORDER BY priority, id LIMIT 1)
RETURNING id, kind, arm, subject, phase, attempt;

-- finish_task: only who holds the newest claim may finish; changes no row otherwise
UPDATE tasks SET state = 'done'
WHERE id = :task_id AND attempt = :attempt AND state = 'claimed';

-- give_back: the task is ready again
UPDATE tasks SET state = 'ready', claimed_by = NULL
WHERE id = :task_id AND attempt = :attempt AND state = 'claimed';

-- give_back_all: nobody works on this run any more
UPDATE tasks SET state = 'ready', claimed_by = NULL WHERE state = 'claimed';

-- count_tasks: by kind and state
SELECT kind, arm, state, count(*) FROM tasks GROUP BY kind, arm, state ORDER BY kind, arm, state;

-- list_tasks: those that are not done
SELECT kind, arm, subject, phase, state, attempt FROM tasks WHERE state <> 'done'
ORDER BY priority, id;

-- add_module: a module at the start of a phase
INSERT INTO modules (arm, module, phase, name, digest, num_bytes,
                     state_name, state_digest, state_bytes, gradient_norm)
VALUES (:arm, :module, :phase, :name, :digest, :num_bytes,
        :state_name, :state_digest, :state_bytes, :gradient_norm);

-- get_module: one module at the start of a phase
SELECT name, digest, num_bytes, state_name, state_digest, state_bytes, gradient_norm FROM modules
WHERE arm = :arm AND module = :module AND phase = :phase;

-- modules_at: all modules that have reached a phase
SELECT module, name, digest, num_bytes FROM modules WHERE arm = :arm AND phase = :phase
ORDER BY module;

-- phases_reached: the last phase that all modules have reached
SELECT phase FROM modules WHERE arm = :arm GROUP BY phase HAVING count(*) = :num_modules
ORDER BY phase DESC LIMIT 1;

-- newest_modules: the last phase of every module
SELECT arm, module, max(phase), digest FROM modules GROUP BY arm, module ORDER BY arm, module;

-- add_arrival: one path's contribution to one module
INSERT INTO arrivals (arm, module, phase, path, base_digest, name, digest, num_bytes)
VALUES (:arm, :module, :phase, :path, :base_digest, :name, :digest, :num_bytes);

-- arrivals: contributions to a module in a phase, in path order
SELECT path, base_digest, name, digest, num_bytes FROM arrivals
WHERE arm = :arm AND module = :module AND phase = :phase ORDER BY path;

-- num_arrivals: how many there are
SELECT count(*) FROM arrivals WHERE arm = :arm AND module = :module AND phase = :phase;

-- add_trained: a path went through a phase
INSERT INTO trained (arm, path, phase, name, digest, num_bytes, step, batches, losses, tokens,
                     seconds, bytes_down, bytes_up)
VALUES (:arm, :path, :phase, :name, :digest, :num_bytes, :step, :batches, :losses, :tokens,
        :seconds, :bytes_down, :bytes_up);

-- get_trained: a path's snapshot after a phase
SELECT name, digest, num_bytes, step, batches FROM trained
WHERE arm = :arm AND path = :path AND phase = :phase;

-- losses: every inner step of an arm, path by path
SELECT path, phase, losses FROM trained WHERE arm = :arm ORDER BY path, phase;

-- training_totals: what an arm's training took
SELECT coalesce(sum(tokens), 0), coalesce(sum(seconds), 0),
       coalesce(sum(bytes_down + bytes_up), 0), count(*)
FROM trained WHERE arm = :arm;

-- newest_trained: where every path is
SELECT t.arm, t.path, t.phase, t.step, t.losses, s.tokens FROM trained t
JOIN (SELECT arm, path, max(phase) AS phase, sum(tokens) AS tokens FROM trained GROUP BY arm, path) s
  ON (t.arm, t.path, t.phase) = (s.arm, s.path, s.phase)
ORDER BY t.arm, t.path;

-- add_stage: a stage of the job is done
INSERT INTO stages (stage, artifacts, summary, seconds)
VALUES (:stage, :artifacts, :summary, :seconds);

-- get_stage: what it made
SELECT artifacts, summary, seconds FROM stages WHERE stage = :stage;

-- list_stages: which are done
SELECT stage, artifacts, summary, seconds FROM stages ORDER BY rowid;

-- add_score: log-likelihoods of documents under a path
INSERT INTO scores (arm, path, phase, name, digest, num_bytes, seconds)
VALUES (:arm, :path, :phase, :name, :digest, :num_bytes, :seconds);

-- scores: all paths of a release, in path order
SELECT path, name, digest, num_bytes FROM scores WHERE arm = :arm AND phase = :phase ORDER BY path;

-- num_scored: how many there are
SELECT count(*) FROM scores WHERE arm = :arm AND phase = :phase;

-- add_release: a consistent set goes out
INSERT INTO releases (arm, phase, digest, body) VALUES (:arm, :phase, :digest, :body);

-- get_release: that of a phase
SELECT digest, body FROM releases WHERE arm = :arm AND phase = :phase;

-- list_releases: all of them
SELECT arm, phase, digest FROM releases ORDER BY arm, phase;

-- add_evaluation: perplexity of a release
INSERT INTO evaluations (arm, phase, perplexity, best_path_perplexity, documents, tokens, seconds)
VALUES (:arm, :phase, :perplexity, :best_path_perplexity, :documents, :tokens, :seconds);

-- list_evaluations: learning curves
SELECT arm, phase, perplexity, best_path_perplexity, documents, tokens, seconds FROM evaluations
ORDER BY arm, phase;

-- superseded_arrivals: contributions whose module has stepped
SELECT a.name FROM arrivals a JOIN modules m
  ON (m.arm, m.module, m.phase) = (a.arm, a.module, a.phase + 1)
WHERE a.arm = :arm AND a.module = :module AND a.phase = :phase;

-- superseded_snapshots: the snapshot of the phase before
SELECT name FROM trained WHERE arm = :arm AND path = :path AND phase = :phase - 1;

-- live_names: the last snapshot of every path, and contributions whose module has not stepped
SELECT t.name FROM trained t
JOIN (SELECT arm, path, max(phase) AS phase FROM trained GROUP BY arm, path) s
  ON (t.arm, t.path, t.phase) = (s.arm, s.path, s.phase)
UNION
SELECT a.name FROM arrivals a LEFT JOIN modules m
  ON (m.arm, m.module, m.phase) = (a.arm, a.module, a.phase + 1)
WHERE m.module IS NULL;
