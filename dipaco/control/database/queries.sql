-- Every query of the ledger, by name. `-- name: purpose` starts one, `-- name@sqlite:` one for that
-- database only, and `-- name@part:` a condition that several share, where they say [[name]].
-- A query with {table} is asked as `name table`. SQLite has one writer, and leaves out FOR UPDATE.
--
-- A frequent query must not read what is finished. SQLite has no statistics here, and may begin
-- with the largest table. A CROSS JOIN keeps it to the order written.

-- get_meta: Returns the value of a key.
SELECT value FROM meta WHERE key = :key;

-- put_meta: Adds a key, which must be new.
INSERT INTO meta (key, value) VALUES (:key, :value);

-- remember_meta: Adds a key, unless it has a value already.
INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO NOTHING;

-- change_meta: Adds a key, or replaces its value.
INSERT INTO meta (key, value) VALUES (:key, :value)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- forget_meta: Deletes the keys that match a pattern.
DELETE FROM meta WHERE key LIKE :keys;

-- deleting_workers: Lists the live workers that are deleting objects, with their processes.
SELECT w.name, w.process_id FROM meta m JOIN workers w ON w.process_id = m.value
WHERE m.key LIKE 'deleting %' AND w.state = 'here' AND w.is_silent = 0 ORDER BY w.name;

-- add_task: Makes a task due. If it exists, it becomes ready if it was waiting or set aside.
INSERT INTO tasks (kind, arm, subject, phase, priority)
VALUES (:kind, :arm, :subject, :phase, :priority)
ON CONFLICT (kind, arm, subject, phase) DO UPDATE SET state = 'ready'
WHERE tasks.state IN ('waiting', 'aside');

-- add_outer_task: Makes an outer step due, like `add_task`, if its module has all contributions.
INSERT INTO tasks (kind, arm, subject, phase, priority)
SELECT 'outer', :arm, :subject, :phase, :priority
WHERE (SELECT count(*) FROM contributions
       WHERE arm = :arm AND module = :subject AND phase = :phase) = :awaited
ON CONFLICT (kind, arm, subject, phase) DO UPDATE SET state = 'ready'
WHERE tasks.state IN ('waiting', 'aside');

-- count_contributions: Returns whether a module has reached a phase, and the number of
-- contributions to it in that phase and in the one before.
SELECT (SELECT count(*) FROM modules
        WHERE arm = :arm AND module = :module AND phase = :phase),
       (SELECT count(*) FROM contributions
        WHERE arm = :arm AND module = :module AND phase = :phase),
       (SELECT count(*) FROM contributions
        WHERE arm = :arm AND module = :module AND phase = :phase - 1);

-- put_quorum: Starts the grace of a step that has its quorum, unless the step is due already.
INSERT INTO quorums (arm, module, phase, epoch, until)
SELECT :arm, :module, :phase, :epoch, :now + :grace_seconds
WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE kind = 'outer' AND arm = :arm AND subject = :module
                  AND phase = :phase AND state <> 'aside')
ON CONFLICT (arm, module, phase) DO NOTHING;

-- drop_quorum: Ends the grace of a step that has all its contributions.
DELETE FROM quorums WHERE arm = :arm AND module = :module AND phase = :phase;

-- num_graces_over: Counts the graces of an arm that are over or must start again. One must if its
-- clock ended with a reboot, or was set back so that more than a whole grace is left.
SELECT count(*) FROM quorums
WHERE arm = :arm AND (until <= :now OR epoch <> :epoch OR until > :now + :grace_seconds);

-- restart_grace: Restarts the grace of steps whose clock is not this one or was set back.
UPDATE quorums SET epoch = :epoch, until = :now + :grace_seconds
WHERE arm = :arm AND (epoch <> :epoch OR until > :now + :grace_seconds);

-- end_grace: Deletes the graces that are over, and returns their steps.
DELETE FROM quorums WHERE epoch = :epoch AND until <= :now RETURNING arm, module, phase;

-- in_grace: Lists (arm, module) of every step in its grace.
SELECT arm, module FROM quorums;

-- steps_in_grace: Lists the steps in their grace, and the seconds left.
SELECT arm, module, phase, until - :now FROM quorums WHERE epoch = :epoch
ORDER BY arm, module, phase;

-- taken: Lists the contributions that a step takes, late ones first.
SELECT phase, path, step FROM taken WHERE arm = :arm AND module = :module AND step = :step
ORDER BY phase, path;

-- take: Decides which contributions a step takes: all that are in of its phase and the one before,
-- unless an earlier step took them.
INSERT INTO taken (arm, module, phase, path, step)
SELECT c.arm, c.module, c.phase, c.path, :step FROM contributions c
WHERE c.arm = :arm AND c.module = :module AND c.phase >= :step - 1 AND c.phase <= :step
  AND NOT EXISTS (SELECT 1 FROM taken t
                  WHERE (t.arm, t.module, t.phase, t.path) = (c.arm, c.module, c.phase, c.path));

-- all_taken: Lists the contributions that steps of an arm have taken.
SELECT module, phase, path, step FROM taken WHERE arm = :arm ORDER BY step, module, phase, path;

-- late_taken: Lists the late contributions that steps of an arm have taken.
SELECT module, phase, path, step FROM taken WHERE arm = :arm AND step > phase
ORDER BY step, module, phase, path;

-- newest_taken: Lists the contributions that the newest step of each module of an arm has taken.
SELECT t.module, t.phase, t.path, t.step FROM module_totals s CROSS JOIN taken t
WHERE s.arm = :arm AND t.arm = s.arm AND t.module = s.module AND t.step =
  (SELECT max(n.step) FROM taken n WHERE n.arm = s.arm AND n.module = s.module)
ORDER BY t.module, t.phase, t.path;

-- num_taken: Counts the contributions that steps of an arm have taken.
SELECT count(*) FROM taken WHERE arm = :arm;

-- redo_task: Opens a finished task again.
UPDATE tasks SET state = 'ready', redo = redo + 1
WHERE kind = :kind AND arm = :arm AND subject = :subject AND phase = :phase AND state = 'done';

-- get_task: Returns the number and the state of a task, and locks it. If it were finished
-- meanwhile, a task that begins to wait for it would not be woken.
SELECT id, state FROM tasks
WHERE kind = :kind AND arm = :arm AND subject = :subject AND phase = :phase FOR UPDATE;

-- count_recovery: Records that a task waits for another one, which is opened `more` times for it.
-- Returns how often it was since the first was last done itself.
INSERT INTO recoveries (task_id, cause_id, times) VALUES (:task_id, :cause_id, :more)
ON CONFLICT (task_id, cause_id) DO UPDATE SET times = recoveries.times + :more RETURNING times;

-- step_of_contribution: Returns the phase of the step that takes a contribution. This is the step
-- that took it, else the step of its own phase, or the next one if that step took others.
SELECT coalesce(
  (SELECT t.step FROM taken t
   WHERE t.arm = :arm AND t.module = :module AND t.phase = :phase AND t.path = :path),
  CASE WHEN EXISTS (SELECT 1 FROM taken t
                    WHERE t.arm = :arm AND t.module = :module AND t.step = :phase)
       THEN CAST(:phase AS BIGINT) + 1 ELSE CAST(:phase AS BIGINT) END);

-- lock_step: Locks an outer step, so that nobody claims it meanwhile.
SELECT 1 FROM tasks WHERE kind = 'outer' AND arm = :arm AND subject = :module AND phase = :phase
FOR UPDATE;

-- state_of_step: Returns whether a module has stepped, how many tasks are making this step, and how
-- many are not done.
SELECT EXISTS (SELECT 1 FROM modules
               WHERE arm = :arm AND module = :module AND phase = CAST(:phase AS BIGINT) + 1),
       (SELECT count(*) FROM tasks WHERE kind = 'outer' AND arm = :arm AND subject = :module
        AND phase = :phase AND state = 'claimed'),
       (SELECT count(*) FROM tasks WHERE kind = 'outer' AND arm = :arm AND subject = :module
        AND phase = :phase AND state NOT IN ('done', 'aside'));

-- lock_later_phases: Locks the later phases of a path, so that nobody claims them meanwhile.
SELECT 1 FROM tasks WHERE kind = 'train' AND arm = :arm AND subject = :subject AND phase > :phase
ORDER BY id FOR UPDATE;

-- state_of_later_phases: Returns whether a path has trained a later phase, how many tasks are
-- training one, and how many are to train one again.
SELECT EXISTS (SELECT 1 FROM trained WHERE arm = :arm AND path = :path AND phase > :phase),
       (SELECT count(*) FROM tasks WHERE kind = 'train' AND arm = :arm AND subject = :subject
        AND phase > :phase AND state = 'claimed'),
       (SELECT count(*) FROM tasks t JOIN trained r ON r.arm = t.arm AND r.phase = t.phase
        WHERE r.path = :path AND t.kind = 'train' AND t.arm = :arm AND t.subject = :subject
        AND t.phase > :phase AND t.state NOT IN ('done', 'aside'));

-- drop_phase: Deletes the row of a path's phase from {table}.
DELETE FROM {table} WHERE arm = :arm AND path = :path AND phase = :phase;

-- maker_of_module: Lists the modules that have an object as their parameters or their outer state.
SELECT arm, module, phase FROM modules WHERE name = :name OR state_name = :name;

-- maker_in: Returns the path and phase for which {table} has an object.
SELECT arm, path, phase FROM {table} WHERE name = :name ORDER BY path LIMIT 1;

-- drop_partial_snapshot_named: Deletes a damaged partial snapshot. Its phase begins again.
DELETE FROM partial_snapshots WHERE name = :name;

-- drop_contribution: Deletes a contribution that is refused or replaced.
DELETE FROM contributions WHERE arm = :arm AND module = :module AND phase = :phase AND path = :path;

-- put_refusal: Records an object that was refused or damaged, and the task that makes it again.
INSERT INTO refusals (what, reason, task, worker) VALUES (:what, :reason, :task, :worker);

-- refusals_after: Lists the refusals after a number, the oldest first.
SELECT id, what, reason, task, worker FROM refusals WHERE id > :number ORDER BY id;

-- newest_refusal: Returns the number of the newest refusal, or 0.
SELECT coalesce(max(id), 0) FROM refusals;

-- refusals: Lists the newest refusals, the newest first.
SELECT what, reason, task, worker FROM refusals ORDER BY id DESC LIMIT 100;

-- is_claimable@part: True if a worker may claim this row of `tasks`. `kinds` is a JSON array,
-- matched by LIKE so that the index on priority is used. A swarm's path is left to its backbones,
-- which train no other path. With `own`, a JSON array, no other path is trained.
:kinds LIKE '%"' || kind || '"%' AND (:own = '' OR kind <> 'train'
  OR :own LIKE '%"' || tasks.arm || '/' || tasks.subject || '"%') AND NOT EXISTS (
  SELECT 1 FROM swarm_backbones b JOIN workers w ON w.name = b.worker
  WHERE tasks.kind = 'train' AND w.state = 'here' AND (
    b.worker = :worker AND (b.arm, b.subject) <> (tasks.arm, tasks.subject)
    OR (b.arm, b.subject) = (tasks.arm, tasks.subject) AND w.is_silent = 0
      AND NOT EXISTS (SELECT 1 FROM swarm_backbones own WHERE own.worker = :worker)))

-- is_not_left_to_its_worker@part: True if this row of `tasks` is not left to its path's assigned
-- worker. It is left to a live worker that does training tasks, unless the task went wrong or was
-- lost there, or the worker is training. With is_patient, it must have gone wrong twice, or the
-- worker must be training an earlier phase of this very path. With `left`, a JSON array, no other
-- path is left to its worker. Backbones are left nothing, and leave nothing.
(:left <> '' AND :left NOT LIKE '%"' || tasks.arm || '/' || tasks.subject || '"%' OR NOT EXISTS (
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

-- next_task@sqlite: Finds the most urgent ready task that a worker may claim.
SELECT id FROM tasks
WHERE state = 'ready' AND [[is_claimable]] AND [[is_not_left_to_its_worker]]
ORDER BY priority, id LIMIT 1;

-- take_task@sqlite: Claims a ready task. `add_claim` follows.
UPDATE tasks SET state = 'claimed', attempt = attempt + 1 WHERE id = :task_id
RETURNING id, kind, arm, subject, phase, attempt;

-- claim_task@postgresql: Finds the most urgent ready task that a worker may claim, and claims it.
-- Of two claims at the same moment, one takes the next task. The commit does not wait for the disk.
WITH next AS MATERIALIZED
  (SELECT id FROM tasks
   WHERE state = 'ready' AND [[is_claimable]] AND [[is_not_left_to_its_worker]]
   ORDER BY priority, id LIMIT 1 FOR UPDATE SKIP LOCKED),
claimed AS
  (UPDATE tasks SET state = 'claimed', attempt = attempt + 1 WHERE id IN (SELECT id FROM next)
   RETURNING id, kind, arm, subject, phase, attempt),
held AS
  (INSERT INTO claims (task_id, attempt, worker, lease_seconds, begun)
   SELECT id, attempt, :worker, :lease_seconds, :wall FROM claimed)
SELECT id, kind, arm, subject, phase, attempt FROM claimed
WHERE set_config('synchronous_commit', 'off', true) = 'off';

-- single_claims: Lists the paths' tasks that one other worker holds, the longest held first, with
-- the seconds held at the last renewal. Hundreds are held. Few are joined here, because an overdue
-- task has been held for `factor` times the quickest of the newest phases at least.
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

-- has_earlier_phase: Returns a row if an earlier phase of the same path is not done.
SELECT 1 FROM tasks WHERE kind = :kind AND arm = :arm AND subject = :subject AND phase < :phase
  AND state NOT IN ('done', 'aside') LIMIT 1;

-- has_others: Returns a row if a worker that waits with a claimed task has something else to do: a
-- ready task that it may claim, or a failed one that may hold up the run.
SELECT 1 WHERE
     EXISTS (SELECT 1 FROM tasks
             WHERE state = 'ready' AND [[is_claimable]] AND [[is_not_left_to_its_worker]])
  OR EXISTS (SELECT 1 FROM tasks WHERE state = 'failed' AND kind <> 'sample');

-- lock_task: Locks a claimed task. Returns no row if another worker holds the lock.
SELECT 1 FROM tasks WHERE id = :task_id AND state = 'claimed' FOR UPDATE SKIP LOCKED;

-- claim_backup: Claims an overdue task a second time, after `lock_task`. On PostgreSQL, a statement
-- that waits for the lock itself counts the claims as they were before.
UPDATE tasks SET attempt = attempt + 1
WHERE id = :task_id AND state = 'claimed'
  AND (SELECT count(*) FROM claims WHERE task_id = :task_id) = 1
RETURNING id, kind, arm, subject, phase, attempt;

-- usual_seconds: Lists how long the newest finished phases of an arm's paths took.
SELECT seconds FROM trained WHERE arm = :arm ORDER BY phase DESC, path DESC LIMIT 64;

-- add_claim: Records that a worker holds a task until its lease expires.
INSERT INTO claims (task_id, attempt, worker, lease_seconds, begun)
VALUES (:task_id, :attempt, :worker, :lease_seconds, :wall);

-- renew_claim: Starts the lease of a claim again. Changes no row if the claim is lost.
UPDATE claims SET renewals = renewals + 1, lease_seconds = :lease_seconds,
                  stalled_seconds = :stalled_seconds, held_seconds = :held_seconds
WHERE task_id = :task_id AND attempt = :attempt AND worker = :worker;

-- holds_claim: Returns a row if a claim is still held.
SELECT 1 FROM claims WHERE task_id = :task_id AND attempt = :attempt AND worker = :worker;

-- drop_claim: Ends a claim. Returns no row if it is lost.
DELETE FROM claims WHERE task_id = :task_id AND attempt = :attempt AND worker = :worker
RETURNING task_id, attempt, worker, begun;

-- drop_claims_of_task: Ends all claims of a task.
DELETE FROM claims WHERE task_id = :task_id RETURNING task_id, attempt, worker, begun;

-- drop_claims_of_worker: Ends the claims of a worker that is known to be dead.
DELETE FROM claims WHERE worker = :worker RETURNING task_id, attempt, worker, begun;

-- drop_all_claims: Ends all claims.
DELETE FROM claims RETURNING task_id, attempt, worker, begun;

-- live_claims: Lists all claims, with their renewals, the time without progress, the losses of the
-- task, and the process of each worker if known.
SELECT c.task_id, c.attempt, c.worker, c.renewals, c.lease_seconds, c.stalled_seconds,
       coalesce(f.losses, 0), w.process_id
FROM claims c LEFT JOIN workers w ON w.name = c.worker LEFT JOIN failures f ON f.task_id = c.task_id
ORDER BY c.task_id, c.attempt;

-- drop_silent_claim: Ends a claim that is silent. Returns no row if it was renewed meanwhile.
DELETE FROM claims WHERE task_id = :task_id AND attempt = :attempt AND renewals = :renewals
RETURNING task_id, attempt, worker, begun;

-- heard_workers: Lists the workers that count as alive, with the counter that each raises.
SELECT name, heartbeats FROM workers WHERE state = 'here' AND is_silent = 0 ORDER BY name;

-- heard_after: Lists the workers that count as alive and follow a name in a ring of all names.
SELECT name, heartbeats FROM (
  SELECT name, heartbeats FROM workers WHERE state = 'here' AND is_silent = 0 AND name > :name
  ORDER BY name LIMIT :limit) AS later
UNION ALL
SELECT name, heartbeats FROM (
  SELECT name, heartbeats FROM workers WHERE state = 'here' AND is_silent = 0 AND name <= :name
  ORDER BY name LIMIT :limit) AS earlier;

-- mark_silent: Marks a worker without a heartbeat for a lease as silent, until its next heartbeat.
UPDATE workers SET is_silent = 1
WHERE name = :name AND heartbeats = :heartbeats AND is_silent = 0;

-- process_of_holder: Returns the process of a worker that holds a claim.
SELECT process_id FROM workers
WHERE name = :name AND EXISTS (SELECT 1 FROM claims c WHERE c.worker = workers.name);

-- mark_ended: Marks a worker whose process has ended as silent, unless another has taken its name.
UPDATE workers SET is_silent = 1 WHERE name = :name AND process_id = :process_id AND is_silent = 0;

-- note_attempt: Records how an attempt at a task ended.
INSERT INTO history (task_id, attempt, worker, machine, begun, ended, outcome, reason)
VALUES (:task_id, :attempt, :worker,
        coalesce((SELECT machine FROM workers WHERE name = :worker), ''),
        :begun, :wall, :outcome, :reason);

-- note_event: Records an event of a worker or of the run.
INSERT INTO history (worker, machine, ended, outcome, reason)
VALUES (:worker, coalesce((SELECT machine FROM workers WHERE name = :worker), ''), :wall,
        :outcome, :reason);

-- history_after: Lists the events after a number, the oldest first.
SELECT h.id, t.kind, t.arm, t.subject, t.phase, h.attempt, h.worker, h.machine, h.begun, h.ended,
       h.outcome, h.reason
FROM history h LEFT JOIN tasks t ON t.id = h.task_id WHERE h.id > :number ORDER BY h.id;

-- prune_history: Deletes all but the newest events.
DELETE FROM history WHERE id <= (SELECT max(id) FROM history) - :keep;

-- lock_given_up: Locks the claimed tasks without a claim, before `reopen_tasks` or `end_attempt`.
-- These would not see a backup that is being claimed. This statement waits for it.
SELECT 1 FROM tasks WHERE state = 'claimed'
  AND NOT EXISTS (SELECT 1 FROM claims WHERE task_id = tasks.id)
ORDER BY id FOR UPDATE OF tasks;

-- reopen_tasks: Makes claimed tasks without a claim ready.
UPDATE tasks SET state = 'ready'
WHERE state = 'claimed' AND NOT EXISTS (SELECT 1 FROM claims WHERE task_id = tasks.id);

-- count_failure: Counts one more attempt at a task that went wrong, and returns the counts.
INSERT INTO failures (task_id, errors, crashes, losses, reason, worker, epoch, since, wait_seconds)
VALUES (:task_id, :errors, :crashes, :losses, :reason, :worker, :epoch, :now, 0)
ON CONFLICT (task_id) DO UPDATE SET
  errors = failures.errors + excluded.errors, crashes = failures.crashes + excluded.crashes,
  losses = failures.losses + excluded.losses, reason = excluded.reason, worker = excluded.worker,
  epoch = excluded.epoch, since = excluded.since
RETURNING errors, crashes, losses;

-- put_delay: Sets the wait before a task is tried again.
UPDATE failures SET wait_seconds = :wait_seconds WHERE task_id = :task_id;

-- end_attempt: Changes the state of a claimed task, if its last claim is gone.
UPDATE tasks SET state = :state
WHERE id = :task_id AND state = 'claimed'
  AND NOT EXISTS (SELECT 1 FROM claims WHERE task_id = tasks.id);

-- delayed_or_failed_tasks: Lists the delayed and failed tasks, and whether each has waited long
-- enough. It has if its clock is not this one or was set back.
SELECT t.id, t.state, f.epoch <> :epoch OR :now < f.since OR :now >= f.since + f.wait_seconds
FROM tasks t JOIN failures f ON f.task_id = t.id WHERE t.state = 'delayed'
UNION ALL
SELECT t.id, t.state, TRUE FROM tasks t WHERE t.state = 'failed';

-- end_delay: Makes a delayed task ready.
UPDATE tasks SET state = 'ready' WHERE id = :task_id AND state = 'delayed';

-- failures: Lists the tasks whose last attempts went wrong.
SELECT t.kind, t.arm, t.subject, t.phase, t.state, f.errors, f.crashes, f.losses, f.reason,
       f.worker, f.since + f.wait_seconds - :now
FROM failures f CROSS JOIN tasks t WHERE t.id = f.task_id AND t.state <> 'aside'
ORDER BY CASE t.state WHEN 'failed' THEN 0 ELSE 1 END, f.errors + f.crashes + f.losses DESC, t.id;

-- is_stuck: Returns a row if a task has failed and none can go on. Nothing waits for a `sample`.
SELECT 1 WHERE EXISTS (SELECT 1 FROM tasks WHERE state = 'failed' AND kind <> 'sample')
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE state = 'ready')
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE state = 'claimed')
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE state = 'delayed')
  AND NOT EXISTS (SELECT 1 FROM quorums);

-- retry_task: Makes a failed or delayed task ready.
UPDATE tasks SET state = 'ready'
WHERE kind = :kind AND arm = :arm AND subject = :subject AND phase = :phase
  AND state IN ('failed', 'delayed') RETURNING id;

-- forget: Deletes a task's rows from {table}.
DELETE FROM {table} WHERE task_id = :task_id;

-- forget_deaths: Sets a task's crashes and losses to zero, because it has got on.
UPDATE failures SET crashes = 0, losses = 0 WHERE task_id = :task_id;

-- forget_aside: Deletes the rows of tasks that are set aside from {table}.
DELETE FROM {table} WHERE task_id IN (SELECT id FROM tasks WHERE state = 'aside');

-- finish_task: Marks a claimed task as done, and returns how often it was opened again.
UPDATE tasks SET state = 'done' WHERE id = :task_id AND state = 'claimed' RETURNING redo;

-- lock_waiting: Locks all waiting tasks. A transaction that makes tasks due does so before it
-- changes any task: two that make them due in other orders would wait for each other.
SELECT 1 FROM tasks WHERE state = 'waiting' ORDER BY id FOR UPDATE;

-- wake_tasks: Makes waiting tasks ready, once all that is made again for them is done, after
-- `lock_waiting`. They look again for their inputs.
UPDATE tasks SET state = 'ready' WHERE state = 'waiting' AND NOT EXISTS (
  SELECT 1 FROM recoveries r JOIN tasks c ON c.id = r.cause_id
  WHERE r.task_id = tasks.id AND c.state NOT IN ('done', 'aside'));

-- wake_tasks_of: Makes the tasks ready that wait for one which has failed, after `lock_waiting`.
-- What it wrote may be there, though its facts differ from the recorded ones.
UPDATE tasks SET state = 'ready'
WHERE state = 'waiting' AND id IN (SELECT task_id FROM recoveries WHERE cause_id = :cause_id);

-- is_finished_by: Returns a row if this attempt finished the task. It is asked where a connection
-- broke during a commit. The row of the task may count a later attempt, of a backup, so it is read
-- only where the history has forgotten this one.
SELECT 1 FROM history
WHERE task_id = :task_id AND attempt = :attempt AND worker = :worker AND outcome = 'done'
UNION ALL
SELECT 1 FROM tasks WHERE id = :task_id AND state = 'done' AND attempt = :attempt
  AND NOT EXISTS (SELECT 1 FROM history WHERE task_id = :task_id AND attempt = :attempt);

-- claims: Lists all claims, with the seconds held and without progress at the last renewal, and the
-- lease.
SELECT t.kind, t.arm, t.subject, t.phase, c.worker, c.attempt, c.held_seconds, c.stalled_seconds,
       c.renewals, c.lease_seconds
FROM claims c JOIN tasks t ON t.id = c.task_id ORDER BY c.worker, t.id;

-- put_worker: Registers a worker. Changes no row if another took the name meanwhile.
INSERT INTO workers (name, host, pid, process_id, machine, version, state, epoch, joined, heartbeat,
                     kinds)
VALUES (:name, :host, :pid, :process_id, :machine, :version, 'here', :epoch, :now, :now, :kinds)
ON CONFLICT (name) DO UPDATE SET
  earlier_seconds = workers.earlier_seconds + workers.heartbeat - workers.joined,
  host = excluded.host, pid = excluded.pid, process_id = excluded.process_id,
  machine = excluded.machine, state = 'here', version = excluded.version,
  epoch = excluded.epoch, joined = excluded.joined,
  heartbeat = excluded.heartbeat, heartbeats = workers.heartbeats + 1, is_silent = 0,
  kinds = excluded.kinds, last_words = ''
WHERE workers.state <> 'here' OR workers.process_id = :after;

-- heartbeat: Records that a worker is alive.
UPDATE workers SET heartbeat = :now, heartbeats = heartbeats + 1, is_silent = 0
WHERE name = :name AND process_id = :process_id;

-- leave: Records that a worker has left.
UPDATE workers SET state = 'left', heartbeat = :now, last_words = :last_words
WHERE name = :name AND process_id = :process_id AND state = 'here';

-- lose_worker: Records that a worker is dead.
UPDATE workers SET state = 'lost', last_words = :last_words WHERE name = :name AND state = 'here';

-- credit_worker: Adds a recorded task to the counts of its worker, which is alive.
UPDATE workers SET committed_seconds = committed_seconds + :seconds, heartbeat = :now,
                   committed_tasks = committed_tasks + 1 WHERE name = :name;

-- debit_worker: Adds a lost task to the counts of its worker.
UPDATE workers SET lost_tasks = lost_tasks + 1 WHERE name = :name;

-- list_workers: Lists all workers, and how much of their time counted. A worker that was last seen
-- before a reboot has been silent since then, at least.
SELECT name, host, pid, machine, state,
       CASE WHEN epoch = :epoch THEN :now - heartbeat ELSE :now END,
       earlier_seconds + heartbeat - joined,
       committed_seconds, committed_tasks, lost_tasks, epoch, joined, heartbeats,
       CASE WHEN epoch = :epoch THEN is_silent ELSE 1 END, process_id, kinds, last_words
FROM workers ORDER BY name;

-- put_partial_snapshot: Records a snapshot that was taken inside a phase.
INSERT INTO partial_snapshots (arm, path, phase, name, digest, num_bytes, step, batches, losses,
                               seconds, norms)
VALUES (:arm, :path, :phase, :name, :digest, :num_bytes, :step, :batches, :losses, :seconds,
        :norms)
ON CONFLICT (arm, path, phase, step) DO UPDATE SET
  name = excluded.name, digest = excluded.digest, num_bytes = excluded.num_bytes, batches = excluded.batches, losses = excluded.losses,
  seconds = excluded.seconds, norms = excluded.norms;

-- drop_partial_snapshot: Deletes a snapshot that was taken inside a phase.
DELETE FROM partial_snapshots WHERE arm = :arm AND path = :path AND phase = :phase AND step = :step;

-- get_partial_snapshots: Lists the snapshots that were taken inside a phase, the newest first.
SELECT name, digest, num_bytes, step, batches, losses, seconds, norms FROM partial_snapshots
WHERE arm = :arm AND path = :path AND phase = :phase ORDER BY step DESC;

-- partial_snapshot_losses: Lists the losses in the partial snapshots of an arm.
SELECT losses FROM partial_snapshots s WHERE arm = :arm AND step =
  (SELECT max(step) FROM partial_snapshots n
   WHERE (n.arm, n.path, n.phase) = (s.arm, s.path, s.phase));

-- finish_training@postgresql: Commits a path's phase with all that follows (see the schema), and
-- assigns the path to its worker.
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

-- flush@postgresql: Commits nothing, and waits until all earlier commits are durable.
SELECT set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'dipaco', '');

-- create_schema@postgresql: Creates the schema for one run's tables.
CREATE SCHEMA IF NOT EXISTS {schema};

-- drop_schema@postgresql: Drops the schema of a run that another process began first.
DROP SCHEMA {schema} CASCADE;

-- search_here@postgresql: Sets the search path for the schema's scripts, in this transaction.
SET LOCAL search_path = {schema};

-- routines@postgresql: Lists the functions of the schema that is being created.
SELECT CAST(CAST(oid AS REGPROCEDURE) AS TEXT) FROM pg_proc
WHERE pronamespace = CAST(current_schema() AS REGNAMESPACE);

-- set_search_path@postgresql: Lets a function find tables that it names without a schema.
ALTER ROUTINE {routine} SET search_path = {schema};

-- create_schema_version@postgresql: Creates a table for the version. SQLite has it in the file.
CREATE TABLE IF NOT EXISTS schema_version
  (is_only BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (is_only), version BIGINT NOT NULL);

-- get_schema_version@postgresql: Returns the version of the tables.
SELECT version FROM schema_version;

-- put_schema_version@postgresql: Records the version of the tables.
INSERT INTO schema_version (version) VALUES (:version);

-- wait_for_lock@postgresql: Waits until other transactions that count the same facts have ended.
SELECT pg_advisory_xact_lock(hashtextextended(:subject, 0));

-- count_tasks: Counts the tasks by kind, arm and state.
WITH unfinished AS MATERIALIZED
  (SELECT kind, arm, state, 1 AS number FROM tasks WHERE state NOT IN ('done', 'aside'))
SELECT kind, arm, state, CAST(sum(number) AS BIGINT)
FROM (SELECT kind, arm, state, number FROM unfinished
      UNION ALL SELECT kind, arm, state, number FROM settled_tasks) AS counted
GROUP BY kind, arm, state HAVING sum(number) > 0 ORDER BY kind, arm, state;

-- is_unfinished@part: True if this row of `tasks` is unfinished. A `sample` that failed is not.
state NOT IN ('done', 'aside') AND NOT (state = 'failed' AND kind = 'sample')

-- has_unfinished: Returns a row if a task is unfinished.
SELECT 1 FROM tasks WHERE [[is_unfinished]] ORDER BY priority, id LIMIT 1;

-- unfinished_kinds: Lists the kinds of unfinished tasks.
WITH unfinished AS MATERIALIZED (SELECT kind FROM tasks WHERE [[is_unfinished]])
SELECT DISTINCT kind FROM unfinished;

-- list_tasks: Lists the unfinished tasks, the most urgent first.
SELECT kind, arm, subject, phase, state, attempt FROM tasks WHERE [[is_unfinished]]
ORDER BY priority, id;

-- add_module: Records a module at the start of a phase.
INSERT INTO modules (arm, module, phase, name, digest, num_bytes,
                     state_name, state_digest, state_bytes, gradient_norm, gradient_stats)
VALUES (:arm, :module, :phase, :name, :digest, :num_bytes,
        :state_name, :state_digest, :state_bytes, :gradient_norm, :gradient_stats);

-- outer_steps: Lists how each outer step moved each module of an arm.
SELECT module, phase, gradient_norm, gradient_stats FROM modules WHERE arm = :arm AND phase > 0
ORDER BY module, phase;

-- get_module: Returns one module at the start of a phase.
SELECT name, digest, num_bytes, state_name, state_digest, state_bytes FROM modules
WHERE arm = :arm AND module = :module AND phase = :phase;

-- modules_at: Lists the modules that have reached a phase.
SELECT module, name, digest, num_bytes FROM modules WHERE arm = :arm AND phase = :phase
ORDER BY module;

-- phases_reached: Returns the last phase that all modules have reached.
SELECT phase FROM modules WHERE arm = :arm GROUP BY phase HAVING count(*) = :num_modules
ORDER BY phase DESC LIMIT 1;

-- newest_modules: Lists all modules at their newest phases.
SELECT m.arm, m.module, m.phase, m.digest FROM module_totals s CROSS JOIN modules m
WHERE m.arm = s.arm AND m.module = s.module AND m.phase =
  (SELECT max(n.phase) FROM modules n WHERE n.arm = s.arm AND n.module = s.module)
ORDER BY m.arm, m.module;

-- add_contribution: Records one path's contribution to one module.
INSERT INTO contributions (arm, module, phase, path, base_digest, name, digest, num_bytes)
VALUES (:arm, :module, :phase, :path, :base_digest, :name, :digest, :num_bytes);

-- contributions: Lists the contributions to a module in a phase, in path order.
SELECT path, base_digest, name, digest, num_bytes FROM contributions
WHERE arm = :arm AND module = :module AND phase = :phase ORDER BY path;

-- get_contribution: Returns the digest of one path's contribution to a module.
SELECT digest FROM contributions
WHERE arm = :arm AND module = :module AND phase = :phase AND path = :path;

-- add_trained: Records that a path went through a phase.
INSERT INTO trained (arm, path, phase, name, digest, num_bytes, step, position, batches, losses,
                     norm_mean, norm_largest, tokens, seconds, bytes_down, bytes_up, machine)
VALUES (:arm, :path, :phase, :name, :digest, :num_bytes, :step, :position, :batches, :losses,
        :norm_mean, :norm_largest, :tokens, :seconds, :bytes_down, :bytes_up, :machine);

-- get_trained: Returns a path's snapshot after a phase.
SELECT name, digest, num_bytes, step, position, batches FROM trained
WHERE arm = :arm AND path = :path AND phase = :phase;

-- trained_in: Lists the paths that went through a phase.
SELECT path FROM trained WHERE arm = :arm AND phase = :phase;

-- move_snapshot: Changes the name of a snapshot that was written again.
UPDATE trained SET name = :name WHERE arm = :arm AND path = :path AND phase = :phase;

-- wall_clock: Tells the wall clock of the database's machine.
SELECT :wall;

-- losses: Lists the losses of every inner step of an arm, path by path.
SELECT path, losses FROM trained WHERE arm = :arm ORDER BY path, phase;

-- training_totals: Sums what an arm's training took.
SELECT CAST(coalesce(sum(tokens), 0) AS BIGINT), coalesce(sum(seconds), 0),
       CAST(coalesce(sum(phases), 0) AS BIGINT)
FROM path_totals WHERE arm = :arm;

-- training_totals_before: Sums what an arm's training took before a phase.
SELECT CAST(coalesce(sum(tokens), 0) AS BIGINT), coalesce(sum(seconds), 0), count(*)
FROM trained WHERE arm = :arm AND phase < :phase;

-- newest_trained: Lists all paths at their newest phases.
SELECT t.arm, t.path, t.phase, t.step, t.losses, s.tokens FROM path_totals s CROSS JOIN trained t
WHERE t.arm = s.arm AND t.path = s.path AND t.phase =
  (SELECT max(n.phase) FROM trained n WHERE n.arm = s.arm AND n.path = s.path)
ORDER BY t.arm, t.path;

-- add_stage: Records the result of a stage, or of a slice of one.
INSERT INTO stages (stage, phase, artifacts, summary, seconds)
VALUES (:stage, :phase, :artifacts, :summary, :seconds);

-- get_stage: Returns the result of a stage or slice.
SELECT artifacts, summary, seconds FROM stages WHERE stage = :stage AND phase = :phase;

-- list_stages: Lists the results of stages, without slices.
SELECT stage, phase, artifacts, summary, seconds FROM stages WHERE stage NOT LIKE '% %';

-- list_slices: Lists the results of slices whose names, `STAGE STEP SLICE`, match a pattern.
SELECT stage, artifacts, summary, seconds FROM stages WHERE stage LIKE :names;

-- num_slices: Counts the results of slices whose names match a pattern.
SELECT count(*) FROM stages WHERE stage LIKE :names;

-- add_likelihoods: Records log-likelihoods of documents under a path in {table}.
INSERT INTO {table} (arm, path, phase, name, digest, num_bytes, seconds)
VALUES (:arm, :path, :phase, :name, :digest, :num_bytes, :seconds);

-- likelihoods: Lists the log-likelihoods that {table} has of all paths at a phase, in path order.
SELECT name, digest, num_bytes FROM {table} WHERE arm = :arm AND phase = :phase ORDER BY path;

-- get_likelihoods: Returns the digest of the log-likelihoods that {table} has of one path.
SELECT digest FROM {table} WHERE arm = :arm AND path = :path AND phase = :phase;

-- add_check: Records how well a path predicts what its shard holds out.
INSERT INTO checks (arm, path, phase, loss, best_phase, seconds)
VALUES (:arm, :path, :phase, :loss, :best_phase, :seconds);

-- checks: Lists the checks of all paths at a phase.
SELECT path, loss, best_phase, seconds FROM checks WHERE arm = :arm AND phase = :phase
ORDER BY path;

-- checks_at_best: Lists the checks by which a phase is a path's best, and whether no later one is
-- recorded.
SELECT c.path, c.phase, CASE WHEN EXISTS
    (SELECT 1 FROM checks n WHERE n.arm = c.arm AND n.phase = c.phase + 1 AND n.path = c.path)
  THEN 0 ELSE 1 END
FROM checks c WHERE c.arm = :arm AND c.best_phase = :phase;

-- get_check: Returns a row if a path was checked at a phase.
SELECT 1 FROM checks WHERE arm = :arm AND path = :path AND phase = :phase;

-- num_scored: Counts the paths whose scores of a release are recorded.
SELECT count(*) FROM scores WHERE arm = :arm AND phase = :phase;

-- add_release: Records a release, unless its phase has one.
INSERT INTO releases (arm, phase, digest, body) VALUES (:arm, :phase, :digest, :body)
ON CONFLICT (arm, phase) DO NOTHING;

-- get_release: Returns the release of a phase.
SELECT body FROM releases WHERE arm = :arm AND phase = :phase;

-- list_releases: Lists all releases.
SELECT arm, phase FROM releases ORDER BY arm, phase;

-- add_evaluation: Records the perplexity of a release.
INSERT INTO evaluations
  (arm, phase, perplexity, best_path_perplexity, other_rows, tune_rows, documents, tokens, seconds)
VALUES
  (:arm, :phase, :perplexity, :best_path_perplexity, :other_rows, :tune_rows, :documents, :tokens,
  :seconds);

-- add_sample: Records a prompt that a release continued.
INSERT INTO samples
  (arm, phase, number, domain, document, path, prompt, text, num_tokens, has_ended)
VALUES
  (:arm, :phase, :number, :domain, :document, :path, :prompt, :text, :num_tokens, :has_ended);

-- has_rows: Returns a row if {table} has one of a release.
SELECT 1 FROM {table} WHERE arm = :arm AND phase = :phase LIMIT 1;

-- list_samples: Lists the samples of an arm, or of all.
SELECT arm, phase, domain, document, path, prompt, text, num_tokens, has_ended FROM samples
WHERE arm = coalesce(CAST(:arm AS TEXT), arm) ORDER BY arm, phase, number;

-- newest_samples: Lists the samples of the newest release of an arm that has some.
SELECT arm, phase, domain, document, path, prompt, text, num_tokens, has_ended FROM samples
WHERE arm = :arm AND phase = (SELECT max(n.phase) FROM samples n WHERE n.arm = :arm)
ORDER BY number;

-- list_evaluations: Lists the evaluations of all releases.
SELECT arm, phase, perplexity, best_path_perplexity, other_rows, tune_rows, documents, tokens,
  seconds FROM evaluations ORDER BY arm, phase;

-- superseded_contributions: Lists the contributions to a module that are `keep` phases older than
-- its newest. There are none while the step from them is made again.
SELECT c.name FROM contributions c JOIN modules m
  ON (m.arm, m.module, m.phase) = (c.arm, c.module, c.phase + :keep)
WHERE c.arm = :arm AND c.module = :module AND c.phase = :newest - :keep
  AND NOT EXISTS (SELECT 1 FROM tasks again
                  WHERE again.kind = 'outer' AND again.arm = c.arm AND again.subject = c.module
                    AND again.phase = c.phase AND again.redo > 0 AND again.state <> 'done');

-- superseded_taken: Lists the contributions that a module's step took `keep` phases before its
-- newest. There are none while that step is made again.
SELECT c.name FROM contributions c JOIN taken t
  ON (t.arm, t.module, t.phase, t.path) = (c.arm, c.module, c.phase, c.path)
JOIN modules m ON (m.arm, m.module, m.phase) = (t.arm, t.module, t.step + :keep)
WHERE t.arm = :arm AND t.module = :module AND t.step = :newest - :keep
  AND NOT EXISTS (SELECT 1 FROM tasks again
                  WHERE again.kind = 'outer' AND again.arm = t.arm AND again.subject = t.module
                    AND again.phase = t.step AND again.redo > 0 AND again.state <> 'done');

-- superseded_snapshots: Returns the newest snapshot of a path after the `keep` newest ones. A path
-- does not take part in every phase. There is none while a later phase is trained again.
SELECT old.name FROM
  (SELECT arm, path, phase, name FROM trained
   WHERE arm = :arm AND path = :path AND phase <= :newest
   ORDER BY phase DESC LIMIT 1 OFFSET :keep) AS old
WHERE NOT EXISTS (SELECT 1 FROM tasks again
                  WHERE again.kind IN ('train', 'pretrain') AND again.arm = old.arm
                    AND again.subject = CAST(old.path AS TEXT) AND again.phase > old.phase
                    AND again.phase <= :newest AND again.redo > 0 AND again.state <> 'done');

-- superseded_modules: Lists a module's parameters and outer state at a phase, if no other fact has
-- them and the module has reached the phase `newest`. Facts of the same module in the phases after
-- `since`, up to this one, do not count.
SELECT old.name FROM modules old
WHERE old.arm = :arm AND old.module = :module AND old.phase = :phase
  AND EXISTS (SELECT 1 FROM modules n
              WHERE n.arm = :arm AND n.module = :module AND n.phase = :newest)
  AND NOT EXISTS (SELECT 1 FROM modules o WHERE o.name = old.name AND NOT
                  ((o.arm, o.module) = (old.arm, old.module) AND o.phase > :since
                   AND o.phase <= old.phase))
UNION ALL
SELECT old.state_name FROM modules old
WHERE old.arm = :arm AND old.module = :module AND old.phase = :phase
  AND old.state_name IS NOT NULL
  AND EXISTS (SELECT 1 FROM modules n
              WHERE n.arm = :arm AND n.module = :module AND n.phase = :newest)
  AND NOT EXISTS (SELECT 1 FROM modules o WHERE o.state_name = old.state_name AND NOT
                  ((o.arm, o.module) = (old.arm, old.module) AND o.phase > :since
                   AND o.phase <= old.phase));

-- machines: Counts the phases of paths by the kind of machine that trained them.
SELECT machine, CAST(sum(phases) AS BIGINT) FROM path_machines
GROUP BY machine HAVING sum(phases) > 0 ORDER BY machine;

-- newest_machines: Lists the newest phases of every path, `most` of each, with the kind of machine
-- that trained each.
SELECT t.arm, t.path, t.phase, t.machine FROM path_totals s CROSS JOIN trained t
WHERE t.arm = s.arm AND t.path = s.path AND t.phase IN
  (SELECT n.phase FROM trained n WHERE n.arm = s.arm AND n.path = s.path
   ORDER BY n.phase DESC LIMIT :most)
ORDER BY t.arm, t.path, t.phase DESC;

-- live_names: Lists the objects that will be read again, or are needed to make a damaged one again.
-- These are the newest snapshots of every path, without the arm `but`, the newest contributions to
-- every module, all partial snapshots, and the inputs of tasks that are done again.
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

-- module_objects: Lists the parameters and outer states of every module at every phase.
SELECT arm, phase, name, state_name FROM modules;

-- release_bodies: Lists all releases with their contents.
SELECT arm, phase, body FROM releases;

-- drop_older_releases: Deletes all releases but the newest of every arm.
DELETE FROM releases
WHERE phase < (SELECT max(n.phase) FROM releases n WHERE n.arm = releases.arm);

-- object_bytes: Lists the objects that training has written, and their bytes.
SELECT name, num_bytes FROM modules
UNION SELECT state_name, state_bytes FROM modules WHERE state_name IS NOT NULL
UNION SELECT name, num_bytes FROM contributions
UNION SELECT name, num_bytes FROM trained
UNION SELECT name, num_bytes FROM partial_snapshots
UNION SELECT name, num_bytes FROM labels
UNION SELECT name, num_bytes FROM scores;

-- put_swarm_credential: Records an issued credential.
INSERT INTO swarm_credentials (serial, name, role, not_after)
VALUES (:serial, :name, :role, :not_after);

-- revoke_swarm_credentials: Revokes all credentials of a volunteer's name.
UPDATE swarm_credentials SET revoked = 1 WHERE name = :name AND role = 'volunteer';

-- lock_swarm_credential: Revokes a credential whose sessions were refused too often.
UPDATE swarm_credentials SET revoked = 1 WHERE serial = :serial;

-- swarm_refusals: Lists the reasons of refused sessions, or the evidence, by a pattern of keys.
SELECT key, value FROM meta WHERE key LIKE :keys ORDER BY key;

-- swarm_credentials: Lists the issued credentials.
SELECT serial, name, role, not_after, revoked FROM swarm_credentials ORDER BY name, serial;

-- put_swarm_backbone: Records that a worker is the backbone of a path.
INSERT INTO swarm_backbones (worker, arm, subject, address)
VALUES (:worker, :arm, :subject, :address)
ON CONFLICT (worker) DO UPDATE
SET arm = excluded.arm, subject = excluded.subject, address = excluded.address;

-- drop_swarm_backbone: Records that a worker is no backbone any more.
DELETE FROM swarm_backbones WHERE worker = :worker;

-- swarm_backbones: Lists the live backbones of a path, the newest heartbeat first.
SELECT b.worker, b.address FROM swarm_backbones b JOIN workers w ON w.name = b.worker
WHERE b.arm = :arm AND b.subject IN (:subject, :other) AND w.state = 'here' AND w.is_silent = 0
ORDER BY w.heartbeat DESC;

-- registered_backbones: Lists the backbones of a path that have not left in order.
SELECT worker FROM swarm_backbones
WHERE arm = :arm AND subject IN (:subject, :other) ORDER BY worker;

-- swarm_addresses: Lists the addresses of the live backbones of all paths.
SELECT b.address FROM swarm_backbones b JOIN workers w ON w.name = b.worker
WHERE w.state = 'here' AND w.is_silent = 0 ORDER BY b.worker;

-- swarm_places: Lists the addresses of the live backbones of an arm, with their paths.
SELECT b.subject, b.address FROM swarm_backbones b JOIN workers w ON w.name = b.worker
WHERE b.arm = :arm AND w.state = 'here' AND w.is_silent = 0 ORDER BY w.heartbeat DESC;

-- swarm_wants: Returns a row if a worker that is no backbone is to leave a path to its backbones.
SELECT 1 FROM swarm_backbones b JOIN workers w ON w.name = b.worker
WHERE b.arm = :arm AND b.subject = :subject AND w.state = 'here' AND w.is_silent = 0
  AND NOT EXISTS (SELECT 1 FROM swarm_backbones own WHERE own.worker = :worker) LIMIT 1;

-- put_swarm_step: Records a group step. A step that was lost is taken again, and replaces it.
INSERT INTO swarm_steps (arm, path, step, lineage, loss, targets, seconds, blocks, sketch, steps)
VALUES (:arm, :path, :step, :lineage, :loss, :targets, :seconds, :blocks, :sketch, :steps)
ON CONFLICT (arm, path, step) DO UPDATE
SET lineage = excluded.lineage, loss = excluded.loss, targets = excluded.targets,
    seconds = excluded.seconds, blocks = excluded.blocks, sketch = excluded.sketch,
    steps = excluded.steps;

-- has_swarm_steps: Returns 1 if volunteers have taken a step of a path.
SELECT 1 FROM swarm_steps WHERE arm = :arm AND path = :path LIMIT 1;

-- drop_swarm_steps: Deletes a path's group steps from one on, which are taken again.
DELETE FROM swarm_steps WHERE arm = :arm AND path = :path AND step >= :step;

-- swarm_steps: Lists the group steps of a path.
SELECT step, lineage, loss, targets, seconds, blocks, sketch, steps FROM swarm_steps
WHERE arm = :arm AND path = :path ORDER BY step;

-- swarm_shares: Lists the blocks that each name has computed in the steps of all paths.
SELECT path, name, blocks, out_of, steps FROM swarm_shares WHERE steps > 0
ORDER BY arm, path, name, blocks, out_of;

-- put_swarm_status: Records the status of a swarm.
INSERT INTO swarm_status (arm, path, leader, status) VALUES (:arm, :path, :leader, :status)
ON CONFLICT (arm, path) DO UPDATE SET leader = excluded.leader, status = excluded.status;

-- swarm_status: Lists the status of every swarm.
SELECT arm, path, leader, status FROM swarm_status ORDER BY arm, path;

-- bytes_by_kind: Sums the bytes exchanged and written in the whole run.
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

-- tokens_by_arm: Sums the tokens that each arm was trained on.
SELECT arm, CAST(sum(tokens) AS BIGINT) FROM path_totals
GROUP BY arm HAVING sum(phases) > 0 ORDER BY arm;

-- num_refusals: Counts all refusals of the run.
SELECT count(*) FROM refusals;

-- aside_tasks: Sets aside the tasks of later phases, and those that end the run.
UPDATE tasks SET state = 'aside'
WHERE state <> 'aside' AND (
  kind IN ('reroute', 'report')
  OR kind = 'route' AND phase > :phase
  OR arm = :arm AND kind IN ('train', 'outer') AND phase >= :phase
  OR arm = :arm AND kind IN ('label', 'check', 'score', 'evaluate', 'sample') AND phase > :phase);

-- aside_after: Deletes an arm's facts of later phases from {table}, and returns them.
DELETE FROM {table} WHERE arm = :arm AND phase > :phase RETURNING *;

-- aside_since: Deletes an arm's facts of this phase and later ones from {table}, and returns them.
DELETE FROM {table} WHERE arm = :arm AND phase >= :phase RETURNING *;

-- aside_taken: Deletes what an arm's steps at this phase and later ones took, and returns it.
DELETE FROM taken WHERE arm = :arm AND step >= :phase RETURNING *;

-- aside_stages: Deletes the alternations of later phases and the end of the run, and returns them.
DELETE FROM stages WHERE stage IN ('reroute', 'report') OR (stage = 'route' AND phase > :phase)
RETURNING *;

-- newest_rollback: Returns the number of the newest rollback, or 0.
SELECT coalesce(max(rollback), 0) FROM set_aside;

-- put_aside@sqlite: Keeps the facts that a rollback deleted. `bodies` is a JSON array of texts.
INSERT INTO set_aside (rollback, arm, phase, kind, body)
SELECT :rollback, :arm, :phase, :kind, value FROM json_each(:bodies) ORDER BY key;

-- put_aside@postgresql: Keeps the facts that a rollback deleted. `bodies` is a JSON array of texts.
INSERT INTO set_aside (rollback, arm, phase, kind, body)
SELECT CAST(:rollback AS BIGINT), CAST(:arm AS TEXT), CAST(:phase AS BIGINT), CAST(:kind AS TEXT),
       b.body
FROM json_array_elements_text(CAST(:bodies AS JSON)) WITH ORDINALITY AS b (body, place)
ORDER BY b.place;

-- rollbacks: Counts what each rollback set aside, by kind.
SELECT rollback, arm, phase, kind, count(*) FROM set_aside
GROUP BY rollback, arm, phase, kind ORDER BY rollback, kind;

-- work_summary@sqlite: Returns the run's command and version, and whether a task of some kinds is
-- ready, one is delayed or has failed, and one is not done. Each part is the first entry of a
-- partial index.
SELECT (SELECT value FROM meta WHERE key = 'command'),
       (SELECT value FROM meta WHERE key = 'version'),
       (SELECT id FROM tasks WHERE state = 'ready' AND :kinds LIKE '%"' || kind || '"%'
        ORDER BY priority, id LIMIT 1) IS NOT NULL,
       coalesce((SELECT id FROM tasks WHERE state = 'delayed' ORDER BY id LIMIT 1),
                (SELECT id FROM tasks WHERE state = 'failed' ORDER BY id LIMIT 1)) IS NOT NULL,
       (SELECT id FROM tasks WHERE [[is_unfinished]]
        ORDER BY priority, id LIMIT 1) IS NOT NULL;

-- work_summary@postgresql: Returns what SQLite's `work_summary` does, by a function of the schema.
SELECT * FROM work_summary(:kinds);

-- launchers: Returns (key, process) of every launcher that was ever started.
SELECT key, value FROM meta WHERE key LIKE 'process of launcher %' ORDER BY key;

-- run_command: Returns the command to the workers, and the version that the run is pinned to.
SELECT key, value FROM meta WHERE key IN ('command', 'version');
