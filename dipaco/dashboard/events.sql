-- Lists the events after one, the oldest first, with the tasks that they were attempts at.
SELECT h.id, t.kind, t.arm, t.subject, t.phase, h.attempt, h.worker, h.machine, h.begun, h.ended,
       h.outcome, h.reason
FROM history h LEFT JOIN tasks t ON t.id = h.task_id
WHERE h.id > :number ORDER BY h.id LIMIT :most;
