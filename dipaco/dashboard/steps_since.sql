-- Lists the outer steps that `steps.sql` does, if they were recorded after an event.
SELECT m.module, m.phase, m.gradient_norm, m.gradient_stats
FROM history h JOIN tasks t ON t.id = h.task_id
JOIN modules m ON m.arm = t.arm AND m.module = t.subject AND m.phase = t.phase + 1
WHERE h.id > :number AND h.outcome = 'done' AND t.kind = 'outer' AND t.arm = :arm
  AND m.gradient_norm IS NOT NULL;
