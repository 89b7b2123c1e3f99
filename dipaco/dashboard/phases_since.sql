-- Lists the phases that `phases.sql` does, if they were recorded after an event. In the arms that
-- `synchronous` names (a JSON array), one task trains all paths.
SELECT r.arm, r.path, r.phase, r.tokens, r.seconds, r.bytes_down, r.bytes_up,
       r.norm_mean, r.norm_largest,
       substr(r.losses, CASE WHEN length(r.losses) > 30 THEN length(r.losses) - 29 ELSE 1 END)
FROM history h JOIN tasks t ON t.id = h.task_id
JOIN trained r ON r.arm = t.arm AND r.phase = t.phase
WHERE h.id > :number AND h.outcome = 'done' AND t.kind IN ('pretrain', 'train')
  AND (CAST(r.path AS TEXT) = t.subject OR :synchronous LIKE '%"' || t.arm || '"%');
