-- Every query of the ledger, by name. A line `-- name: what it is for` starts one, and `-- name@part:`
-- a condition that stands in several, where they say [[name]].
--
-- What is asked often must not read what is finished. SQLite has no statistics here, and may begin
-- with the largest table: a CROSS JOIN keeps it to the order written.

-- get_meta: a value of the run as a whole
SELECT value FROM meta WHERE key = :key;

-- put_meta: adds one
INSERT INTO meta (key, value) VALUES (:key, :value);

-- remember_meta: adds one unless it is there
INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO NOTHING;

-- change_meta: adds or replaces one
INSERT INTO meta (key, value) VALUES (:key, :value)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- add_task: makes a task due; a waiting or set-aside one is ready again, any other stays as it is
INSERT INTO tasks (kind, arm, subject, phase, priority)
VALUES (:kind, :arm, :subject, :phase, :priority)
ON CONFLICT (kind, arm, subject, phase) DO UPDATE SET state = 'ready'
WHERE tasks.state IN ('waiting', 'aside');

-- add_outer_task: as add_task, if all contributions to the module are in
INSERT INTO tasks (kind, arm, subject, phase, priority)
SELECT 'outer', :arm, :subject, :phase, :priority
WHERE (SELECT count(*) FROM contributions
       WHERE arm = :arm AND module = :subject AND phase = :phase) = :awaited
ON CONFLICT (kind, arm, subject, phase) DO UPDATE SET state = 'ready'
WHERE tasks.state IN ('waiting', 'aside');

-- count_contributions: whether a module has reached a phase, and the contributions to it in that
-- phase and in the one before
SELECT (SELECT count(*) FROM modules
        WHERE arm = :arm AND module = :module AND phase = :phase),
       (SELECT count(*) FROM contributions
        WHERE arm = :arm AND module = :module AND phase = :phase),
       (SELECT count(*) FROM contributions
        WHERE arm = :arm AND module = :module AND phase = :phase - 1);

-- put_quorum: enough are in; starts the grace for the rest, unless the step is due already
INSERT INTO quorums (arm, module, phase, epoch, until)
SELECT :arm, :module, :phase, :epoch, :now + :grace_seconds
WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE kind = 'outer' AND arm = :arm AND subject = :module
                  AND phase = :phase AND state <> 'aside')
ON CONFLICT (arm, module, phase) DO NOTHING;

-- drop_quorum: all contributions are in
DELETE FROM quorums WHERE arm = :arm AND module = :module AND phase = :phase;

-- num_graces_over: of an arm's modules, those whose grace is over, was counted by the clock before a
-- reboot, or has more left than a whole one, since the clock was set back
SELECT count(*) FROM quorums
WHERE arm = :arm AND (until <= :now OR epoch <> :epoch OR until > :now + :grace_seconds);

-- restart_grace: the clock is another, or was set back
UPDATE quorums SET epoch = :epoch, until = :now + :grace_seconds
WHERE arm = :arm AND (epoch <> :epoch OR until > :now + :grace_seconds);

-- end_grace: modules whose grace is over
DELETE FROM quorums WHERE epoch = :epoch AND until <= :now RETURNING arm, module, phase;

-- steps_in_grace: modules that wait for the rest, and the seconds left
SELECT arm, module, phase, until - :now FROM quorums WHERE epoch = :epoch
ORDER BY arm, module, phase;

-- taken: what a step takes, late ones first
SELECT phase, path, step FROM taken WHERE arm = :arm AND module = :module AND step = :step
ORDER BY phase, path;

-- take: fixes what it takes: all of its phase that are in, and those late for the phase before
INSERT INTO taken (arm, module, phase, path, step)
SELECT c.arm, c.module, c.phase, c.path, :step FROM contributions c
WHERE c.arm = :arm AND c.module = :module AND c.phase >= :step - 1 AND c.phase <= :step
  AND NOT EXISTS (SELECT 1 FROM taken t
                  WHERE (t.arm, t.module, t.phase, t.path) = (c.arm, c.module, c.phase, c.path));

-- all_taken: every contribution that a step of an arm has taken
SELECT module, phase, path, step FROM taken WHERE arm = :arm ORDER BY step, module, phase, path;

-- late_taken: those that were late
SELECT module, phase, path, step FROM taken WHERE arm = :arm AND step > phase
ORDER BY step, module, phase, path;

-- newest_taken: those of the newest step of every module
SELECT t.module, t.phase, t.path, t.step FROM module_totals s CROSS JOIN taken t
WHERE s.arm = :arm AND t.arm = s.arm AND t.module = s.module AND t.step =
  (SELECT max(n.step) FROM taken n WHERE n.arm = s.arm AND n.module = s.module)
ORDER BY t.module, t.phase, t.path;

-- num_taken: by arm
SELECT count(*) FROM taken WHERE arm = :arm;

-- redo_task: opens a finished task again
UPDATE tasks SET state = 'ready', redo = redo + 1
WHERE kind = :kind AND arm = :arm AND subject = :subject AND phase = :phase AND state = 'done';

-- get_task: its number and its state; SQLite has one writer at a time
SELECT id, state FROM tasks
WHERE kind = :kind AND arm = :arm AND subject = :subject AND phase = :phase;

-- get_task@postgresql: as above; it is not finished meanwhile, or a task that begins to wait for it
-- would not be woken
SELECT id, state FROM tasks
WHERE kind = :kind AND arm = :arm AND subject = :subject AND phase = :phase FOR UPDATE;

-- count_recovery: a task has another done again; returns how often since it was last done itself
INSERT INTO recoveries (task_id, cause_id, times) VALUES (:task_id, :cause_id, 1)
ON CONFLICT (task_id, cause_id) DO UPDATE SET times = recoveries.times + 1 RETURNING times;

-- step_of_contribution: the phase of the step that takes it: that which took it, or else its own,
-- unless that has taken others
SELECT coalesce(
  (SELECT t.step FROM taken t
   WHERE t.arm = :arm AND t.module = :module AND t.phase = :phase AND t.path = :path),
  CASE WHEN EXISTS (SELECT 1 FROM taken t
                    WHERE t.arm = :arm AND t.module = :module AND t.step = :phase)
       THEN CAST(:phase AS BIGINT) + 1 ELSE CAST(:phase AS BIGINT) END);

-- lock_step: nobody claims it meanwhile; SQLite has one writer at a time
SELECT 1 WHERE FALSE;

-- lock_step@postgresql: as above
SELECT 1 FROM tasks WHERE kind = 'outer' AND arm = :arm AND subject = :module AND phase = :phase
FOR UPDATE;

-- state_of_step: whether a module has stepped, how many are stepping it, and are to step it (again)
SELECT EXISTS (SELECT 1 FROM modules
               WHERE arm = :arm AND module = :module AND phase = CAST(:phase AS BIGINT) + 1),
       (SELECT count(*) FROM tasks WHERE kind = 'outer' AND arm = :arm AND subject = :module
        AND phase = :phase AND state = 'claimed'),
       (SELECT count(*) FROM tasks WHERE kind = 'outer' AND arm = :arm AND subject = :module
        AND phase = :phase AND state NOT IN ('done', 'aside'));

-- lock_later_phases: of a path; SQLite has one writer at a time
SELECT 1 WHERE FALSE;

-- lock_later_phases@postgresql: as above
SELECT 1 FROM tasks WHERE kind = 'train' AND arm = :arm AND subject = :subject AND phase > :phase
ORDER BY id FOR UPDATE;

-- state_of_later_phases: whether a path has gone on, how many train it now, and are to train a phase
-- again that it went through
SELECT EXISTS (SELECT 1 FROM trained WHERE arm = :arm AND path = :path AND phase > :phase),
       (SELECT count(*) FROM tasks WHERE kind = 'train' AND arm = :arm AND subject = :subject
        AND phase > :phase AND state = 'claimed'),
       (SELECT count(*) FROM tasks t JOIN trained r ON r.arm = t.arm AND r.phase = t.phase
        WHERE r.path = :path AND t.kind = 'train' AND t.arm = :arm AND t.subject = :subject
        AND t.phase > :phase AND t.state NOT IN ('done', 'aside'));

-- drop_trained: it is replaced
DELETE FROM trained WHERE arm = :arm AND path = :path AND phase = :phase;

-- maker_of_module: the module that an object is the parameters or the outer state of
SELECT arm, module, phase FROM modules WHERE name = :name OR state_name = :name;

-- maker_of_message: the path that contributed it
SELECT arm, path, phase FROM contributions WHERE name = :name ORDER BY path LIMIT 1;

-- maker_of_snapshot: the path whose snapshot it is
SELECT arm, path, phase FROM trained WHERE name = :name;

-- maker_of_scores: the path that was scored
SELECT arm, path, phase FROM scores WHERE name = :name ORDER BY path LIMIT 1;

-- maker_of_labels: the path that scored the router's documents
SELECT arm, path, phase FROM labels WHERE name = :name ORDER BY path LIMIT 1;

-- drop_partial_snapshot_named: it is damaged; the phase starts from its beginning
DELETE FROM partial_snapshots WHERE name = :name;

-- drop_contribution: it is refused
DELETE FROM contributions WHERE arm = :arm AND module = :module AND phase = :phase AND path = :path;

-- put_refusal: remembers what was wrong
INSERT INTO refusals (what, reason, task, worker) VALUES (:what, :reason, :task, :worker);

-- refusals_after: with their numbers, the first one first
SELECT id, what, reason, task, worker FROM refusals WHERE id > :number ORDER BY id;

-- newest_refusal: its number
SELECT coalesce(max(id), 0) FROM refusals;

-- refusals: the newest
SELECT what, reason, task, worker FROM refusals ORDER BY id DESC LIMIT 100;

-- is_not_a_swarms@part: of `tasks`: a swarm's path is left to its backbones, which do no other
NOT EXISTS (
  SELECT 1 FROM swarm_backbones b JOIN workers w ON w.name = b.worker
  WHERE tasks.kind = 'train' AND w.state = 'here' AND (
    b.worker = :worker AND (b.arm, b.subject) <> (tasks.arm, tasks.subject)
    OR (b.arm, b.subject) = (tasks.arm, tasks.subject) AND w.is_silent = 0
      AND NOT EXISTS (SELECT 1 FROM swarm_backbones own WHERE own.worker = :worker)))

-- is_not_left_to_its_worker@part: of `tasks`: a path is left to the worker that trained its last phase,
-- unless that trains another just now (and, if is_patient, even then), or this very path, an earlier
-- phase of which is asked for again, or it went wrong or was lost there
(:heeds_assignments = 0 OR NOT EXISTS (
  SELECT 1 FROM meta h JOIN workers w ON w.name = h.value
  WHERE tasks.kind = 'train' AND h.key = 'assigned ' || tasks.arm || '/' || tasks.subject
    AND w.name <> :worker AND w.state = 'here' AND w.is_silent = 0
    AND (w.kinds = '' OR ',' || w.kinds || ',' LIKE '%,train,%')
    AND NOT EXISTS (SELECT 1 FROM swarm_backbones s WHERE s.worker IN (w.name, :worker))
    AND NOT EXISTS (SELECT 1 FROM failures f WHERE f.task_id = tasks.id
                    AND f.worker = w.name AND f.errors + f.crashes + f.losses > :is_patient)
    AND NOT EXISTS (
      SELECT 1 FROM claims c JOIN tasks t ON t.id = c.task_id
      WHERE c.worker = w.name AND t.kind = 'train'
        AND (:is_patient = 0 OR (t.arm, t.subject) = (tasks.arm, tasks.subject)))))

-- next_task@sqlite: the most urgent ready task of some kinds (a JSON array, matched by LIKE so that
-- the index on priority is used). With `own` (a JSON array), no path but these
SELECT id FROM tasks
WHERE state = 'ready' AND :kinds LIKE '%"' || kind || '"%'
  AND [[is_not_a_swarms]]
  AND (:own = '' OR tasks.kind <> 'train'
    OR :own LIKE '%"' || tasks.arm || '/' || tasks.subject || '"%')
  AND [[is_not_left_to_its_worker]]
ORDER BY priority, id LIMIT 1;

-- take_task@sqlite: a ready task is claimed; `add_claim` follows
UPDATE tasks SET state = 'claimed', attempt = attempt + 1 WHERE id = :task_id
RETURNING id, kind, arm, subject, phase, attempt;

-- claim_task@postgresql: finds it as above and claims it; a claim at the same moment takes the next.
-- The disk is not waited for
WITH next AS MATERIALIZED
  (SELECT id FROM tasks
   WHERE state = 'ready' AND :kinds LIKE '%"' || kind || '"%'
     AND [[is_not_a_swarms]]
     AND (:own = '' OR tasks.kind <> 'train'
       OR :own LIKE '%"' || tasks.arm || '/' || tasks.subject || '"%')
     AND [[is_not_left_to_its_worker]]
   ORDER BY priority, id LIMIT 1 FOR UPDATE SKIP LOCKED),
claimed AS
  (UPDATE tasks SET state = 'claimed', attempt = attempt + 1 WHERE id IN (SELECT id FROM next)
   RETURNING id, kind, arm, subject, phase, attempt),
held AS
  (INSERT INTO claims (task_id, attempt, worker, lease_seconds, begun)
   SELECT id, attempt, :worker, :lease_seconds, :wall FROM claimed)
SELECT id, kind, arm, subject, phase, attempt FROM claimed
WHERE set_config('synchronous_commit', 'off', true) = 'off';

-- single_claims: tasks of paths that one other worker holds, with how long it had at its last
-- renewal, the longest first. Only those that may be late: none has been held for as many times as
-- long as the quickest of the newest phases took. Hundreds are held, and few are joined here
SELECT t.id, t.kind, t.arm, t.subject, t.phase, c.held_seconds
FROM claims c CROSS JOIN tasks t
WHERE c.worker <> :worker AND c.held_seconds >= :factor * (
    SELECT min((SELECT min(n.seconds) FROM
                (SELECT r.seconds FROM trained r WHERE r.arm = a.arm
                 ORDER BY r.phase DESC, r.path DESC LIMIT 64) AS n))
    FROM (SELECT DISTINCT s.arm FROM settled_tasks s WHERE s.kind IN ('pretrain', 'train')) AS a)
  AND t.id = c.task_id AND t.state = 'claimed' AND t.kind IN ('pretrain', 'train')
  AND NOT EXISTS (SELECT 1 FROM claims o WHERE o.task_id = c.task_id AND o.attempt <> c.attempt)
  AND NOT EXISTS (SELECT 1 FROM swarm_backbones b WHERE b.worker IN (c.worker, :worker))
ORDER BY c.held_seconds DESC, t.id;

-- has_earlier_phase: a row if an earlier phase of the same path is not done
SELECT 1 FROM tasks WHERE kind = :kind AND arm = :arm AND subject = :subject AND phase < :phase
  AND state NOT IN ('done', 'aside') LIMIT 1;

-- has_others: a row if there is something to see to for a worker that waits with a task in hand: a
-- ready task of some kinds (a JSON array) that is not left to its worker, or one that has failed and
-- may hold up the run
SELECT 1 WHERE
     EXISTS (SELECT 1 FROM tasks WHERE state = 'ready' AND :kinds LIKE '%"' || kind || '"%'
       AND [[is_not_left_to_its_worker]])
  OR EXISTS (SELECT 1 FROM tasks WHERE state = 'failed' AND kind <> 'sample');

-- lock_task: nobody else changes it; SQLite has one writer at a time
SELECT 1 FROM tasks WHERE id = :task_id AND state = 'claimed';

-- lock_task@postgresql: as above; no row if another worker holds the lock
SELECT 1 FROM tasks WHERE id = :task_id AND state = 'claimed' FOR UPDATE SKIP LOCKED;

-- claim_backup: a second worker tries a late task that it has locked. PostgreSQL would count the
-- claims as they were when the statement began to wait for the lock
UPDATE tasks SET attempt = attempt + 1
WHERE id = :task_id AND state = 'claimed'
  AND (SELECT count(*) FROM claims WHERE task_id = :task_id) = 1
RETURNING id, kind, arm, subject, phase, attempt;

-- usual_seconds: how long the newest finished phases of an arm's paths took
SELECT seconds FROM trained WHERE arm = :arm ORDER BY phase DESC, path DESC LIMIT 64;

-- add_claim: a worker holds a task until its lease expires
INSERT INTO claims (task_id, attempt, worker, lease_seconds, begun)
VALUES (:task_id, :attempt, :worker, :lease_seconds, :wall);

-- renew_claim: its lease starts again; changes no row if it is lost
UPDATE claims SET renewals = renewals + 1, lease_seconds = :lease_seconds,
                  held_seconds = :held_seconds
WHERE task_id = :task_id AND attempt = :attempt AND worker = :worker;

-- holds_claim: a row if it is still held
SELECT 1 FROM claims WHERE task_id = :task_id AND attempt = :attempt AND worker = :worker;

-- drop_claim: no row if it is lost
DELETE FROM claims WHERE task_id = :task_id AND attempt = :attempt AND worker = :worker
RETURNING task_id, attempt, worker, begun;

-- drop_claims_of_task: all of them
DELETE FROM claims WHERE task_id = :task_id RETURNING task_id, attempt, worker, begun;

-- drop_claims_of_worker: of a worker that is known to be dead
DELETE FROM claims WHERE worker = :worker RETURNING task_id, attempt, worker, begun;

-- drop_all_claims: of a run without workers
DELETE FROM claims RETURNING task_id, attempt, worker, begun;

-- live_claims: every claim, with the counter that its worker raises, and its process if known
SELECT c.task_id, c.attempt, c.worker, c.renewals, c.lease_seconds, w.process_id
FROM claims c LEFT JOIN workers w ON w.name = c.worker ORDER BY c.task_id, c.attempt;

-- drop_silent_claim: of a worker that was silent for a whole lease, or whose process has ended; no
-- row if it was renewed since
DELETE FROM claims WHERE task_id = :task_id AND attempt = :attempt AND renewals = :renewals
RETURNING task_id, attempt, worker, begun;

-- heard_workers: those that count as alive, with the counter that each raises
SELECT name, heartbeats FROM workers WHERE state = 'here' AND is_silent = 0 ORDER BY name;

-- heard_after: the same, of those that follow a name in a ring of all names
SELECT name, heartbeats FROM (
  SELECT name, heartbeats FROM workers WHERE state = 'here' AND is_silent = 0 AND name > :name
  ORDER BY name LIMIT :limit) AS later
UNION ALL
SELECT name, heartbeats FROM (
  SELECT name, heartbeats FROM workers WHERE state = 'here' AND is_silent = 0 AND name <= :name
  ORDER BY name LIMIT :limit) AS earlier;

-- mark_silent: a worker that was silent for a whole lease; until its next heartbeat
UPDATE workers SET is_silent = 1
WHERE name = :name AND heartbeats = :heartbeats AND is_silent = 0;

-- process_of_holder: the process of a worker that holds a claim
SELECT process_id FROM workers
WHERE name = :name AND EXISTS (SELECT 1 FROM claims c WHERE c.worker = workers.name);

-- mark_ended: a worker whose process has ended; no row if another has taken its name
UPDATE workers SET is_silent = 1 WHERE name = :name AND process_id = :process_id AND is_silent = 0;

-- note_attempt: how an attempt at a task ended
INSERT INTO history (task_id, attempt, worker, machine, begun, ended, outcome, reason)
VALUES (:task_id, :attempt, :worker,
        coalesce((SELECT machine FROM workers WHERE name = :worker), ''),
        :begun, :wall, :outcome, :reason);

-- note_event: what became of a worker, or of the run
INSERT INTO history (worker, machine, ended, outcome, reason)
VALUES (:worker, coalesce((SELECT machine FROM workers WHERE name = :worker), ''), :wall,
        :outcome, :reason);

-- history_after: with their numbers, the first one first
SELECT h.id, t.kind, t.arm, t.subject, t.phase, h.attempt, h.worker, h.machine, h.begun, h.ended,
       h.outcome, h.reason
FROM history h LEFT JOIN tasks t ON t.id = h.task_id WHERE h.id > :number ORDER BY h.id;

-- prune_history: all but the newest
DELETE FROM history WHERE id <= (SELECT max(id) FROM history) - :keep;

-- lock_given_up: before `reopen_tasks`; SQLite has one writer at a time
SELECT 1 WHERE FALSE;

-- lock_given_up@postgresql: as above. A backup that is being claimed is waited for; the statement
-- that reopens would not see it
SELECT 1 FROM tasks WHERE state = 'claimed'
  AND NOT EXISTS (SELECT 1 FROM claims WHERE task_id = tasks.id)
ORDER BY id FOR UPDATE OF tasks;

-- reopen_tasks: claimed tasks without a claim are ready again
UPDATE tasks SET state = 'ready'
WHERE state = 'claimed' AND NOT EXISTS (SELECT 1 FROM claims WHERE task_id = tasks.id);

-- count_failure: one more attempt at a task went wrong
INSERT INTO failures (task_id, errors, crashes, losses, reason, worker, epoch, since, wait_seconds)
VALUES (:task_id, :errors, :crashes, :losses, :reason, :worker, :epoch, :now, 0)
ON CONFLICT (task_id) DO UPDATE SET
  errors = failures.errors + excluded.errors, crashes = failures.crashes + excluded.crashes,
  losses = failures.losses + excluded.losses, reason = excluded.reason, worker = excluded.worker,
  epoch = excluded.epoch, since = excluded.since
RETURNING errors, crashes, losses;

-- put_delay: before it is tried again
UPDATE failures SET wait_seconds = :wait_seconds WHERE task_id = :task_id;

-- end_attempt: the last claim of a task is gone, and this is its state now
UPDATE tasks SET state = :state
WHERE id = :task_id AND state = 'claimed'
  AND NOT EXISTS (SELECT 1 FROM claims WHERE task_id = tasks.id);

-- resting_tasks: delayed and failed ones, and whether they have waited long enough; at once if the
-- clock was set back
SELECT t.id, t.state, f.epoch <> :epoch OR :now < f.since OR :now >= f.since + f.wait_seconds
FROM tasks t JOIN failures f ON f.task_id = t.id WHERE t.state = 'delayed'
UNION ALL
SELECT t.id, t.state, TRUE FROM tasks t WHERE t.state = 'failed';

-- end_delay: a delayed task is ready
UPDATE tasks SET state = 'ready' WHERE id = :task_id AND state = 'delayed';

-- failures: tasks whose last attempts went wrong
SELECT t.kind, t.arm, t.subject, t.phase, t.state, f.errors, f.crashes, f.losses, f.reason,
       f.worker, f.since + f.wait_seconds - :now
FROM failures f CROSS JOIN tasks t WHERE t.id = f.task_id AND t.state <> 'aside'
ORDER BY CASE t.state WHEN 'failed' THEN 0 ELSE 1 END, f.errors + f.crashes + f.losses DESC, t.id;

-- is_stuck: a row if a task has failed and no other can go on; nothing waits for a text of samples
SELECT 1 WHERE EXISTS (SELECT 1 FROM tasks WHERE state = 'failed' AND kind <> 'sample')
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE state = 'ready')
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE state = 'claimed')
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE state = 'delayed')
  AND NOT EXISTS (SELECT 1 FROM quorums);

-- retry_task: a failed or delayed task is ready
UPDATE tasks SET state = 'ready'
WHERE kind = :kind AND arm = :arm AND subject = :subject AND phase = :phase
  AND state IN ('failed', 'delayed') RETURNING id;

-- forget_failures: of a task that is done
DELETE FROM failures WHERE task_id = :task_id;

-- forget_recoveries: of a task that is done
DELETE FROM recoveries WHERE task_id = :task_id;

-- forget_deaths: of a task that got on
UPDATE failures SET crashes = 0, losses = 0 WHERE task_id = :task_id;

-- forget_failures_aside: of tasks that a rollback set aside
DELETE FROM failures WHERE task_id IN (SELECT id FROM tasks WHERE state = 'aside');

-- forget_recoveries_aside: likewise
DELETE FROM recoveries WHERE task_id IN (SELECT id FROM tasks WHERE state = 'aside');

-- finish_task: done, once; returns how often it was opened again
UPDATE tasks SET state = 'done' WHERE id = :task_id AND state = 'claimed' RETURNING redo;

-- wake_tasks: waiting tasks are ready; they look again for their inputs
UPDATE tasks SET state = 'ready' WHERE state = 'waiting';

-- is_finished_by: a row if this attempt finished the task; a later one, of a backup, may be counted in
-- the task's row, which is asked only where the history has forgotten this one. Asked only where a
-- connection broke during a commit
SELECT 1 FROM history
WHERE task_id = :task_id AND attempt = :attempt AND worker = :worker AND outcome = 'done'
UNION ALL
SELECT 1 FROM tasks WHERE id = :task_id AND state = 'done' AND attempt = :attempt
  AND NOT EXISTS (SELECT 1 FROM history WHERE task_id = :task_id AND attempt = :attempt);

-- claims: every claim, with the seconds held at its last renewal, and its lease
SELECT t.kind, t.arm, t.subject, t.phase, c.worker, c.attempt, c.held_seconds,
       c.renewals, c.lease_seconds
FROM claims c JOIN tasks t ON t.id = c.task_id ORDER BY c.worker, t.id;

-- put_worker: registers a worker; changes no row if another took the name meanwhile
INSERT INTO workers (name, host, pid, process_id, machine, version, state, epoch, joined, heartbeat,
                     kinds)
VALUES (:name, :host, :pid, :process_id, :machine, :version, 'here', :epoch, :now, :now, :kinds)
ON CONFLICT (name) DO UPDATE SET
  earlier_seconds = workers.earlier_seconds + workers.heartbeat - workers.joined,
  host = excluded.host, pid = excluded.pid, process_id = excluded.process_id, machine = excluded.machine,
  state = 'here', version = excluded.version, epoch = excluded.epoch, joined = excluded.joined,
  heartbeat = excluded.heartbeat, heartbeats = workers.heartbeats + 1, is_silent = 0,
  kinds = excluded.kinds, last_words = ''
WHERE workers.state <> 'here' OR workers.process_id = :after;

-- heartbeat: a worker is alive
UPDATE workers SET heartbeat = :now, heartbeats = heartbeats + 1, is_silent = 0
WHERE name = :name AND process_id = :process_id;

-- leave: a worker has left
UPDATE workers SET state = 'left', heartbeat = :now, last_words = :last_words
WHERE name = :name AND process_id = :process_id AND state = 'here';

-- lose_worker: a worker is known to be dead
UPDATE workers SET state = 'lost', last_words = :last_words WHERE name = :name AND state = 'here';

-- credit_worker: its task was committed, a sign of life
UPDATE workers SET committed_seconds = committed_seconds + :seconds, heartbeat = :now,
                   committed_tasks = committed_tasks + 1 WHERE name = :name;

-- debit_worker: it lost its task
UPDATE workers SET lost_tasks = lost_tasks + 1 WHERE name = :name;

-- list_workers: every worker, and how much of its time counted. One of before a reboot has been
-- silent since then, at least
SELECT name, host, pid, machine, state,
       CASE WHEN epoch = :epoch THEN :now - heartbeat ELSE :now END,
       earlier_seconds + heartbeat - joined,
       committed_seconds, committed_tasks, lost_tasks, epoch, joined, heartbeats,
       CASE WHEN epoch = :epoch THEN is_silent ELSE 1 END, process_id, kinds, last_words
FROM workers ORDER BY name;

-- put_partial_snapshot: a path stopped inside a phase
INSERT INTO partial_snapshots (arm, path, phase, name, digest, num_bytes, step, batches, losses,
                               seconds)
VALUES (:arm, :path, :phase, :name, :digest, :num_bytes, :step, :batches, :losses, :seconds)
ON CONFLICT (arm, path, phase) DO UPDATE SET
  name = excluded.name, digest = excluded.digest, num_bytes = excluded.num_bytes,
  step = excluded.step, batches = excluded.batches, losses = excluded.losses,
  seconds = excluded.seconds;

-- get_partial_snapshot: where it stopped
SELECT name, digest, num_bytes, step, batches, losses, seconds FROM partial_snapshots
WHERE arm = :arm AND path = :path AND phase = :phase;

-- partial_snapshot_losses: of an arm's phases that were begun
SELECT losses FROM partial_snapshots WHERE arm = :arm;

-- drop_partial_snapshot: the phase is recorded whole
DELETE FROM partial_snapshots WHERE arm = :arm AND path = :path AND phase = :phase;

-- finish_training@postgresql: commits a path's phase with all that follows (see the schema), and
-- its assigned worker
WITH ended AS MATERIALIZED
  (SELECT finish_training(:task_id, :attempt, :worker, :held_seconds, CAST(:trained AS JSONB),
                          CAST(:contributions AS JSONB), CAST(:lock_keys AS TEXT[]),
                          CAST(:outer AS JSONB)) AS state),
settled AS
  (INSERT INTO meta (key, value)
   SELECT h.key, h.value FROM ended CROSS JOIN jsonb_each_text(CAST(:assignments AS JSONB)) h
   WHERE ended.state = 'done'
   ON CONFLICT (key) DO UPDATE SET value = excluded.value)
SELECT state FROM ended;

-- flush@postgresql: a commit of its own, which waits until all earlier ones are durable
SELECT set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'dipaco', '');

-- create_schema@postgresql: the place of one run's tables
CREATE SCHEMA IF NOT EXISTS {schema};

-- drop_schema@postgresql: of a run that another process began first
DROP SCHEMA {schema} CASCADE;

-- search_here@postgresql: until the transaction ends, for the schema's scripts
SET LOCAL search_path = {schema};

-- routines@postgresql: of the schema that is being changed
SELECT CAST(CAST(oid AS REGPROCEDURE) AS TEXT) FROM pg_proc
WHERE pronamespace = CAST(current_schema() AS REGNAMESPACE);

-- set_search_path@postgresql: for what a routine names without a schema
ALTER ROUTINE {routine} SET search_path = {schema};

-- create_schema_version@postgresql: SQLite keeps it in the file's header
CREATE TABLE IF NOT EXISTS schema_version
  (is_only BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (is_only), version BIGINT NOT NULL);

-- get_schema_version@postgresql: which the tables are of
SELECT version FROM schema_version;

-- put_schema_version@postgresql: which they are of now
INSERT INTO schema_version (version) VALUES (:version);

-- wait_for_lock@postgresql: until other transactions that count the same facts have ended
SELECT pg_advisory_xact_lock(hashtextextended(:subject, 0));

-- count_tasks: by kind and state
WITH unfinished AS MATERIALIZED
  (SELECT kind, arm, state, 1 AS number FROM tasks WHERE state NOT IN ('done', 'aside'))
SELECT kind, arm, state, CAST(sum(number) AS BIGINT)
FROM (SELECT kind, arm, state, number FROM unfinished
      UNION ALL SELECT kind, arm, state, number FROM settled_tasks) AS counted
GROUP BY kind, arm, state HAVING sum(number) > 0 ORDER BY kind, arm, state;

-- has_unfinished: a row if a task is not done; a run is finished without texts that have failed
SELECT 1 FROM tasks WHERE state NOT IN ('done', 'aside')
  AND NOT (state = 'failed' AND kind = 'sample') ORDER BY priority, id LIMIT 1;

-- unfinished_kinds: of the tasks that are not done
WITH unfinished AS MATERIALIZED (SELECT kind FROM tasks WHERE state NOT IN ('done', 'aside')
                                   AND NOT (state = 'failed' AND kind = 'sample'))
SELECT DISTINCT kind FROM unfinished;

-- list_tasks: those that are not done
SELECT kind, arm, subject, phase, state, attempt FROM tasks WHERE state NOT IN ('done', 'aside')
  AND NOT (state = 'failed' AND kind = 'sample')
ORDER BY priority, id;

-- add_module: a module at the start of a phase
INSERT INTO modules (arm, module, phase, name, digest, num_bytes,
                     state_name, state_digest, state_bytes, gradient_norm, gradient_stats)
VALUES (:arm, :module, :phase, :name, :digest, :num_bytes,
        :state_name, :state_digest, :state_bytes, :gradient_norm, :gradient_stats);

-- outer_steps: how every module of an arm was moved
SELECT module, phase, gradient_norm, gradient_stats FROM modules WHERE arm = :arm AND phase > 0
ORDER BY module, phase;

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
SELECT m.arm, m.module, m.phase, m.digest FROM module_totals s CROSS JOIN modules m
WHERE m.arm = s.arm AND m.module = s.module AND m.phase =
  (SELECT max(n.phase) FROM modules n WHERE n.arm = s.arm AND n.module = s.module)
ORDER BY m.arm, m.module;

-- add_contribution: one path's contribution to one module
INSERT INTO contributions (arm, module, phase, path, base_digest, name, digest, num_bytes)
VALUES (:arm, :module, :phase, :path, :base_digest, :name, :digest, :num_bytes);

-- contributions: contributions to a module in a phase, in path order
SELECT path, base_digest, name, digest, num_bytes FROM contributions
WHERE arm = :arm AND module = :module AND phase = :phase ORDER BY path;

-- get_contribution: that of one path
SELECT digest FROM contributions
WHERE arm = :arm AND module = :module AND phase = :phase AND path = :path;

-- add_trained: a path went through a phase
INSERT INTO trained (arm, path, phase, name, digest, num_bytes, step, position, batches, losses,
                     tokens, seconds, bytes_down, bytes_up, machine)
VALUES (:arm, :path, :phase, :name, :digest, :num_bytes, :step, :position, :batches, :losses,
        :tokens, :seconds, :bytes_down, :bytes_up, :machine);

-- get_trained: a path's snapshot after a phase
SELECT name, digest, num_bytes, step, position, batches FROM trained
WHERE arm = :arm AND path = :path AND phase = :phase;

-- trained_in: the paths that went through a phase
SELECT path FROM trained WHERE arm = :arm AND phase = :phase;

-- move_snapshot: the same bytes under another name
UPDATE trained SET name = :name WHERE arm = :arm AND path = :path AND phase = :phase;

-- losses: every inner step of an arm, path by path
SELECT path, phase, losses FROM trained WHERE arm = :arm ORDER BY path, phase;

-- losses_of_path: those of one path
SELECT losses FROM trained WHERE arm = :arm AND path = :path ORDER BY phase;

-- training_totals: what an arm's training took
SELECT CAST(coalesce(sum(tokens), 0) AS BIGINT), coalesce(sum(seconds), 0),
       CAST(coalesce(sum(bytes_down + bytes_up), 0) AS BIGINT),
       CAST(coalesce(sum(phases), 0) AS BIGINT)
FROM path_totals WHERE arm = :arm;

-- training_totals_before: what it took until a phase
SELECT CAST(coalesce(sum(tokens), 0) AS BIGINT), coalesce(sum(seconds), 0),
       CAST(coalesce(sum(bytes_down + bytes_up), 0) AS BIGINT), count(*)
FROM trained WHERE arm = :arm AND phase < :phase;

-- newest_trained: where every path is
SELECT t.arm, t.path, t.phase, t.step, t.losses, s.tokens FROM path_totals s CROSS JOIN trained t
WHERE t.arm = s.arm AND t.path = s.path AND t.phase =
  (SELECT max(n.phase) FROM trained n WHERE n.arm = s.arm AND n.path = s.path)
ORDER BY t.arm, t.path;

-- add_stage: a stage of the job is done
INSERT INTO stages (stage, phase, artifacts, summary, seconds)
VALUES (:stage, :phase, :artifacts, :summary, :seconds);

-- get_stage: what it made
SELECT artifacts, summary, seconds FROM stages WHERE stage = :stage AND phase = :phase;

-- list_stages: which are done; not the slices of one
SELECT stage, phase, artifacts, summary, seconds FROM stages WHERE stage NOT LIKE '% %';

-- list_slices: what tasks made that share a stage, by `STAGE STEP SLICE`
SELECT stage, artifacts, summary, seconds FROM stages WHERE stage LIKE :names;

-- num_slices: how many of them are done
SELECT count(*) FROM stages WHERE stage LIKE :names;

-- add_label: log-likelihoods of the router's documents under a path
INSERT INTO labels (arm, path, phase, name, digest, num_bytes, seconds)
VALUES (:arm, :path, :phase, :name, :digest, :num_bytes, :seconds);

-- labels: those of all paths, in path order
SELECT path, name, digest, num_bytes FROM labels WHERE arm = :arm AND phase = :phase ORDER BY path;

-- get_label: that of one path
SELECT digest FROM labels WHERE arm = :arm AND path = :path AND phase = :phase;

-- add_check: how well a path predicts what its shard holds out
INSERT INTO checks (arm, path, phase, loss, best_phase, seconds)
VALUES (:arm, :path, :phase, :loss, :best_phase, :seconds);

-- checks: those of all paths at a phase
SELECT path, loss, best_phase, seconds FROM checks WHERE arm = :arm AND phase = :phase
ORDER BY path;

-- get_check: that of one path
SELECT loss FROM checks WHERE arm = :arm AND path = :path AND phase = :phase;

-- add_score: log-likelihoods of documents under a path
INSERT INTO scores (arm, path, phase, name, digest, num_bytes, seconds)
VALUES (:arm, :path, :phase, :name, :digest, :num_bytes, :seconds);

-- scores: all paths of a release, in path order
SELECT path, name, digest, num_bytes FROM scores WHERE arm = :arm AND phase = :phase ORDER BY path;

-- get_score: that of one path
SELECT digest FROM scores WHERE arm = :arm AND path = :path AND phase = :phase;

-- num_scored: how many there are
SELECT count(*) FROM scores WHERE arm = :arm AND phase = :phase;

-- add_release: a consistent set of modules, once
INSERT INTO releases (arm, phase, digest, body) VALUES (:arm, :phase, :digest, :body)
ON CONFLICT (arm, phase) DO NOTHING;

-- get_release: that of a phase
SELECT digest, body FROM releases WHERE arm = :arm AND phase = :phase;

-- list_releases: all of them
SELECT arm, phase, digest FROM releases ORDER BY arm, phase;

-- add_evaluation: perplexity of a release
INSERT INTO evaluations
  (arm, phase, perplexity, best_path_perplexity, other_rows, documents, tokens, seconds)
VALUES
  (:arm, :phase, :perplexity, :best_path_perplexity, :other_rows, :documents, :tokens, :seconds);

-- get_evaluation: whether a release was evaluated
SELECT perplexity FROM evaluations WHERE arm = :arm AND phase = :phase;

-- add_sample: a prompt that a release continued
INSERT INTO samples
  (arm, phase, number, domain, document, path, prompt, text, num_tokens, has_ended)
VALUES
  (:arm, :phase, :number, :domain, :document, :path, :prompt, :text, :num_tokens, :has_ended);

-- get_sample: whether a release has continued the prompts
SELECT 1 FROM samples WHERE arm = :arm AND phase = :phase LIMIT 1;

-- list_samples: of an arm, or of all
SELECT arm, phase, domain, document, path, prompt, text, num_tokens, has_ended FROM samples
WHERE arm = coalesce(CAST(:arm AS TEXT), arm) ORDER BY arm, phase, number;

-- newest_samples: of the newest release of an arm that has some
SELECT arm, phase, domain, document, path, prompt, text, num_tokens, has_ended FROM samples
WHERE arm = :arm AND phase = (SELECT max(n.phase) FROM samples n WHERE n.arm = :arm)
ORDER BY number;

-- list_evaluations: learning curves
SELECT arm, phase, perplexity, best_path_perplexity, other_rows, documents, tokens, seconds
FROM evaluations ORDER BY arm, phase;

-- superseded_contributions: contributions of a phase, when the newest `keep` phases have them; none
-- while their step is made again
SELECT c.name FROM contributions c JOIN modules m
  ON (m.arm, m.module, m.phase) = (c.arm, c.module, c.phase + :keep)
WHERE c.arm = :arm AND c.module = :module AND c.phase = :newest - :keep
  AND NOT EXISTS (SELECT 1 FROM tasks again
                  WHERE again.kind = 'outer' AND again.arm = c.arm AND again.subject = c.module
                    AND again.phase = c.phase AND again.redo > 0 AND again.state <> 'done');

-- superseded_taken: the same, where a step may take one that was late
SELECT c.name FROM contributions c JOIN taken t
  ON (t.arm, t.module, t.phase, t.path) = (c.arm, c.module, c.phase, c.path)
JOIN modules m ON (m.arm, m.module, m.phase) = (t.arm, t.module, t.step + :keep)
WHERE t.arm = :arm AND t.module = :module AND t.step = :newest - :keep
  AND NOT EXISTS (SELECT 1 FROM tasks again
                  WHERE again.kind = 'outer' AND again.arm = t.arm AND again.subject = t.module
                    AND again.phase = t.step AND again.redo > 0 AND again.state <> 'done');

-- superseded_snapshots: the newest but `keep` (a path does not take part in every phase); none while
-- a later phase is trained again
SELECT old.name FROM
  (SELECT arm, path, phase, name FROM trained
   WHERE arm = :arm AND path = :path AND phase <= :newest
   ORDER BY phase DESC LIMIT 1 OFFSET :keep) AS old
WHERE NOT EXISTS (SELECT 1 FROM tasks again
                  WHERE again.kind IN ('train', 'pretrain') AND again.arm = old.arm
                    AND again.subject = CAST(old.path AS TEXT) AND again.phase > old.phase
                    AND again.phase <= :newest AND again.redo > 0 AND again.state <> 'done');

-- superseded_modules: parameters and outer state of a phase, where no other fact speaks of them; but
-- for the same module's of the phases between `since` and this one, which are superseded too
SELECT old.name FROM modules old
WHERE old.arm = :arm AND old.module = :module AND old.phase = :phase
  AND NOT EXISTS (SELECT 1 FROM modules o WHERE o.name = old.name AND NOT
                  ((o.arm, o.module) = (old.arm, old.module) AND o.phase > :since
                   AND o.phase <= old.phase))
UNION ALL
SELECT old.state_name FROM modules old
WHERE old.arm = :arm AND old.module = :module AND old.phase = :phase
  AND old.state_name IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM modules o WHERE o.state_name = old.state_name AND NOT
                  ((o.arm, o.module) = (old.arm, old.module) AND o.phase > :since
                   AND o.phase <= old.phase));

-- machines: the kinds of machine whose results this run holds, with how many phases of paths
SELECT machine, CAST(sum(phases) AS BIGINT) FROM path_machines
GROUP BY machine HAVING sum(phases) > 0 ORDER BY machine;

-- live_names: objects that will be read again, or are needed to redo a damaged one: the newest
-- snapshots of every path but those of one arm, the newest contributions to every module, partial
-- snapshots, and what tasks begin from that are done again
SELECT name FROM
  (SELECT name, row_number() OVER (PARTITION BY arm, path ORDER BY phase DESC) AS age FROM trained
   WHERE arm <> :but) AS aged
WHERE age <= :snapshots
UNION
SELECT c.name FROM contributions c
LEFT JOIN taken t ON (t.arm, t.module, t.phase, t.path) = (c.arm, c.module, c.phase, c.path)
LEFT JOIN modules m
  ON (m.arm, m.module, m.phase) = (c.arm, c.module, :contributions + coalesce(t.step,
    c.phase + CASE WHEN EXISTS (SELECT 1 FROM taken o WHERE o.arm = c.arm) THEN 1 ELSE 0 END))
WHERE m.module IS NULL
UNION
SELECT name FROM partial_snapshots
UNION
SELECT c.name FROM tasks again JOIN contributions c
  ON c.arm = again.arm AND c.module = again.subject
 AND c.phase >= again.phase - 1 AND c.phase <= again.phase
WHERE again.kind = 'outer' AND again.redo > 0 AND again.state NOT IN ('done', 'aside')
UNION
SELECT t.name FROM tasks again JOIN trained t
  ON t.arm = again.arm AND CAST(t.path AS TEXT) = again.subject AND t.phase < again.phase
WHERE again.kind IN ('train', 'pretrain') AND again.redo > 0
  AND again.state NOT IN ('done', 'aside');

-- module_objects: parameters and outer states of every module at every phase
SELECT arm, phase, name, state_name FROM modules;

-- release_bodies: all of them
SELECT arm, phase, body FROM releases;

-- drop_older_releases: all but the newest of every arm
DELETE FROM releases
WHERE phase < (SELECT max(n.phase) FROM releases n WHERE n.arm = releases.arm);

-- object_bytes: what training has written, by name
SELECT name, num_bytes FROM modules
UNION SELECT state_name, state_bytes FROM modules WHERE state_name IS NOT NULL
UNION SELECT name, num_bytes FROM contributions
UNION SELECT name, num_bytes FROM trained
UNION SELECT name, num_bytes FROM partial_snapshots
UNION SELECT name, num_bytes FROM labels
UNION SELECT name, num_bytes FROM scores;

-- put_swarm_credential: its holder may take part
INSERT INTO swarm_credentials (serial, name, role, not_after)
VALUES (:serial, :name, :role, :not_after);

-- revoke_swarm_credentials: all that a volunteer's name has
UPDATE swarm_credentials SET revoked = 1 WHERE name = :name AND role = 'volunteer';

-- lock_swarm_credential: its sessions were refused too often
UPDATE swarm_credentials SET revoked = 1 WHERE serial = :serial;

-- swarm_refusals: why sessions of each credential were refused
SELECT key, value FROM meta WHERE key LIKE :keys ORDER BY key;

-- swarm_credentials: those that were issued
SELECT serial, name, role, not_after, revoked FROM swarm_credentials ORDER BY name, serial;

-- put_swarm_backbone: a worker is the backbone of a path
INSERT INTO swarm_backbones (worker, arm, subject, address)
VALUES (:worker, :arm, :subject, :address)
ON CONFLICT (worker) DO UPDATE
SET arm = excluded.arm, subject = excluded.subject, address = excluded.address;

-- drop_swarm_backbone: it is none any more
DELETE FROM swarm_backbones WHERE worker = :worker;

-- swarm_backbones: the live ones of a path, the newest heartbeat first
SELECT b.worker, b.address FROM swarm_backbones b JOIN workers w ON w.name = b.worker
WHERE b.arm = :arm AND b.subject IN (:subject, :other) AND w.state = 'here' AND w.is_silent = 0
ORDER BY w.heartbeat DESC;

-- registered_backbones: those of a path that have not left in order
SELECT worker FROM swarm_backbones
WHERE arm = :arm AND subject IN (:subject, :other) ORDER BY worker;

-- swarm_addresses: of the live backbones of all paths
SELECT b.address FROM swarm_backbones b JOIN workers w ON w.name = b.worker
WHERE w.state = 'here' AND w.is_silent = 0 ORDER BY b.worker;

-- swarm_places: of the live backbones of an arm's paths
SELECT b.subject, b.address FROM swarm_backbones b JOIN workers w ON w.name = b.worker
WHERE b.arm = :arm AND w.state = 'here' AND w.is_silent = 0 ORDER BY w.heartbeat DESC;

-- swarm_wants: whether a plain worker is to hand a path back to its backbones
SELECT 1 FROM swarm_backbones b JOIN workers w ON w.name = b.worker
WHERE b.arm = :arm AND b.subject = :subject AND w.state = 'here' AND w.is_silent = 0
  AND NOT EXISTS (SELECT 1 FROM swarm_backbones own WHERE own.worker = :worker) LIMIT 1;

-- put_swarm_step: a group step was taken; a step that was lost is taken again
INSERT INTO swarm_steps (arm, path, step, lineage, loss, targets, seconds, blocks)
VALUES (:arm, :path, :step, :lineage, :loss, :targets, :seconds, :blocks)
ON CONFLICT (arm, path, step) DO UPDATE
SET lineage = excluded.lineage, loss = excluded.loss, targets = excluded.targets,
    seconds = excluded.seconds, blocks = excluded.blocks;

-- swarm_steps: of a path
SELECT step, lineage, loss, targets, seconds, blocks FROM swarm_steps
WHERE arm = :arm AND path = :path ORDER BY step;

-- swarm_shares: what each name has computed of the steps of all paths
SELECT path, name, blocks, out_of, steps FROM swarm_shares WHERE steps > 0
ORDER BY arm, path, name, blocks, out_of;

-- put_swarm_status: how a swarm is
INSERT INTO swarm_status (arm, path, leader, status) VALUES (:arm, :path, :leader, :status)
ON CONFLICT (arm, path) DO UPDATE SET leader = excluded.leader, status = excluded.status;

-- swarm_status: of every swarm
SELECT arm, path, leader, status FROM swarm_status ORDER BY arm, path;

-- bytes_by_kind: exchanged and written in the whole run
SELECT 'modules_fetched', CAST(coalesce(sum(bytes_down), 0) AS BIGINT) FROM path_totals
UNION ALL
SELECT 'contributions_sent', CAST(coalesce(sum(bytes_up), 0) AS BIGINT) FROM path_totals
UNION ALL
SELECT 'snapshots_written', CAST(coalesce(sum(snapshot_bytes), 0) AS BIGINT) FROM path_totals
UNION ALL
SELECT 'modules_written', CAST(coalesce(sum(num_bytes), 0) AS BIGINT) FROM module_totals
UNION ALL
SELECT 'outer_states_written', CAST(coalesce(sum(state_bytes), 0) AS BIGINT) FROM module_totals
UNION ALL
SELECT 'scores_written', CAST(coalesce(sum(score_bytes), 0) AS BIGINT) FROM path_totals;

-- tokens_by_arm: trained on and recorded
SELECT arm, CAST(sum(tokens) AS BIGINT) FROM path_totals
GROUP BY arm HAVING sum(phases) > 0 ORDER BY arm;

-- num_refusals: in the whole run
SELECT count(*) FROM refusals;

-- aside_tasks: tasks of later phases, and of the end of the run
UPDATE tasks SET state = 'aside'
WHERE state <> 'aside' AND (
  kind IN ('reroute', 'report')
  OR kind = 'route' AND phase > :phase
  OR arm = :arm AND kind IN ('train', 'outer') AND phase >= :phase
  OR arm = :arm AND kind IN ('label', 'check', 'score', 'evaluate', 'sample') AND phase > :phase);

-- aside_modules: of later phases
DELETE FROM modules WHERE arm = :arm AND phase > :phase RETURNING *;

-- aside_contributions: to later phases
DELETE FROM contributions WHERE arm = :arm AND phase >= :phase RETURNING *;

-- aside_taken: by the steps to later phases
DELETE FROM taken WHERE arm = :arm AND step >= :phase RETURNING *;

-- aside_quorums: of the steps to later phases
DELETE FROM quorums WHERE arm = :arm AND phase >= :phase RETURNING *;

-- aside_trained: this phase of every path, and later ones
DELETE FROM trained WHERE arm = :arm AND phase >= :phase RETURNING *;

-- aside_partial_snapshots: of the same phases
DELETE FROM partial_snapshots WHERE arm = :arm AND phase >= :phase RETURNING *;

-- aside_scores: of later phases
DELETE FROM scores WHERE arm = :arm AND phase > :phase RETURNING *;

-- aside_releases: of later phases
DELETE FROM releases WHERE arm = :arm AND phase > :phase RETURNING *;

-- aside_evaluations: of later phases
DELETE FROM evaluations WHERE arm = :arm AND phase > :phase RETURNING *;

-- aside_samples: of later phases
DELETE FROM samples WHERE arm = :arm AND phase > :phase RETURNING *;

-- aside_labels: of later phases
DELETE FROM labels WHERE arm = :arm AND phase > :phase RETURNING *;

-- aside_checks: of later phases
DELETE FROM checks WHERE arm = :arm AND phase > :phase RETURNING *;

-- aside_stages: alternations of later phases, and the end of the run
DELETE FROM stages WHERE stage IN ('reroute', 'report') OR (stage = 'route' AND phase > :phase)
RETURNING *;

-- newest_rollback: its number
SELECT coalesce(max(rollback), 0) FROM set_aside;

-- put_aside@sqlite: keeps facts that count no more; a JSON array of texts
INSERT INTO set_aside (rollback, arm, phase, kind, body)
SELECT :rollback, :arm, :phase, :kind, value FROM json_each(:bodies) ORDER BY key;

-- put_aside@postgresql: as above
INSERT INTO set_aside (rollback, arm, phase, kind, body)
SELECT CAST(:rollback AS BIGINT), CAST(:arm AS TEXT), CAST(:phase AS BIGINT), CAST(:kind AS TEXT),
       b.body
FROM json_array_elements_text(CAST(:bodies AS JSON)) WITH ORDINALITY AS b (body, place)
ORDER BY b.place;

-- rollbacks: what was set aside each time
SELECT rollback, arm, phase, kind, count(*) FROM set_aside
GROUP BY rollback, arm, phase, kind ORDER BY rollback, kind;

-- work_summary@sqlite: the run's command, its version, whether a task of some kinds is ready, one is
-- delayed or has failed, and one is not done: the first entry of a partial index each
SELECT (SELECT value FROM meta WHERE key = 'command'),
       (SELECT value FROM meta WHERE key = 'version'),
       (SELECT id FROM tasks WHERE state = 'ready' AND :kinds LIKE '%"' || kind || '"%'
        ORDER BY priority, id LIMIT 1) IS NOT NULL,
       coalesce((SELECT id FROM tasks WHERE state = 'delayed' ORDER BY id LIMIT 1),
                (SELECT id FROM tasks WHERE state = 'failed' ORDER BY id LIMIT 1)) IS NOT NULL,
       (SELECT id FROM tasks WHERE state NOT IN ('done', 'aside')
          AND NOT (state = 'failed' AND kind = 'sample')
        ORDER BY priority, id LIMIT 1) IS NOT NULL;

-- work_summary@postgresql: as above; see the schema
SELECT * FROM work_summary(:kinds);

-- run_command: what the workers do, and the version that the run is pinned to
SELECT key, value FROM meta WHERE key IN ('command', 'version');
