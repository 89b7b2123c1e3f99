-- The schema of SQLite that is not in `tables.sql`.

-- The share of each name in each group step. The name is a session's up to its last slash.
CREATE VIEW swarm_step_shares AS
SELECT s.arm AS arm, s.path AS path, s.step AS step, s.steps AS steps,
       substr(rtrim(e.key, replace(e.key, '/', '')), 1,
              length(rtrim(e.key, replace(e.key, '/', ''))) - 1) AS name,
       sum(json_array_length(e.value)) AS blocks,
       sum(sum(json_array_length(e.value))) OVER (PARTITION BY s.arm, s.path, s.step) AS out_of
FROM swarm_steps s, json_each(s.blocks) e
GROUP BY s.arm, s.path, s.step, name HAVING sum(json_array_length(e.value)) > 0;
