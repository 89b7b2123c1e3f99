-- What each name has computed of the group steps of a path, over all of its sessions: so that who asks
-- for it (`leaderboard.py`) reads no steps. Kept by triggers, also of a step that is taken again.

CREATE TABLE swarm_shares (
  arm     TEXT NOT NULL,
  path    BIGINT NOT NULL,
  name    TEXT NOT NULL,     -- of a credential
  blocks  BIGINT NOT NULL,  -- of a step's batch, that it computed
  out_of  BIGINT NOT NULL,  -- blocks of the whole batch
  steps   BIGINT NOT NULL,  -- of which that is so
  PRIMARY KEY (arm, path, name, blocks, out_of)
);

-- The same of each step. A session is `NAME/...`, without a slash after the last one.
CREATE VIEW swarm_step_shares AS
SELECT s.arm, s.path, s.step, n.name, n.blocks, n.out_of
FROM swarm_steps s CROSS JOIN LATERAL (
  SELECT coalesce(substring(e.key FROM '^(.*)/'), '') AS name,
         sum(json_array_length(e.value)) AS blocks,
         sum(sum(json_array_length(e.value))) OVER () AS out_of
  FROM json_each(CASE json_typeof(s.blocks::json) WHEN 'array' THEN s.blocks::json -> 0
                                                  ELSE s.blocks::json END) AS e
  GROUP BY 1) AS n
WHERE n.blocks > 0;

CREATE FUNCTION count_swarm_step() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Before a step is taken again, the table has what it was: that counts no more.
  INSERT INTO swarm_shares AS t (arm, path, name, blocks, out_of, steps)
  SELECT arm, path, name, blocks, out_of, CASE tg_when WHEN 'BEFORE' THEN -1 ELSE 1 END
  FROM swarm_step_shares
  WHERE (arm, path, step) = (new.arm, new.path, new.step) ORDER BY name
  ON CONFLICT (arm, path, name, blocks, out_of) DO UPDATE SET steps = t.steps + excluded.steps;
  RETURN new;
END $$;
CREATE TRIGGER swarm_step_counts AFTER INSERT OR UPDATE ON swarm_steps FOR EACH ROW
EXECUTE FUNCTION count_swarm_step();
CREATE TRIGGER swarm_step_counts_no_more BEFORE UPDATE ON swarm_steps FOR EACH ROW
EXECUTE FUNCTION count_swarm_step();

INSERT INTO swarm_shares (arm, path, name, blocks, out_of, steps)
SELECT arm, path, name, blocks, out_of, count(*) FROM swarm_step_shares
GROUP BY arm, path, name, blocks, out_of;
