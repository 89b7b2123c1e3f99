-- What each name has computed of the group steps of a path, over all of its sessions: so that who asks
-- for it (`leaderboard.py`) reads no steps. Kept by triggers, also of a step that is taken again.

CREATE TABLE swarm_shares (
  arm     TEXT NOT NULL,
  path    INTEGER NOT NULL,
  name    TEXT NOT NULL,     -- of a credential
  blocks  INTEGER NOT NULL,  -- of a step's batch, that it computed
  out_of  INTEGER NOT NULL,  -- blocks of the whole batch
  steps   INTEGER NOT NULL,  -- of which that is so
  PRIMARY KEY (arm, path, name, blocks, out_of)
) WITHOUT ROWID;

-- The same of each step. A session is `NAME/...`, without a slash after the last one.
CREATE VIEW swarm_step_shares AS
SELECT s.arm AS arm, s.path AS path, s.step AS step,
       substr(rtrim(e.key, replace(e.key, '/', '')), 1,
              length(rtrim(e.key, replace(e.key, '/', ''))) - 1) AS name,
       sum(json_array_length(e.value)) AS blocks,
       sum(sum(json_array_length(e.value))) OVER (PARTITION BY s.arm, s.path, s.step) AS out_of
FROM swarm_steps s, json_each(
  s.blocks, CASE json_type(s.blocks) WHEN 'array' THEN '$[0]' ELSE '$' END) e
GROUP BY s.arm, s.path, s.step, name HAVING sum(json_array_length(e.value)) > 0;

CREATE TRIGGER swarm_step_counts AFTER INSERT ON swarm_steps BEGIN
  INSERT INTO swarm_shares (arm, path, name, blocks, out_of, steps)
  SELECT arm, path, name, blocks, out_of, 1 FROM swarm_step_shares
  WHERE arm = new.arm AND path = new.path AND step = new.step
  ON CONFLICT (arm, path, name, blocks, out_of) DO UPDATE SET steps = steps + 1;
END;
-- One that is taken again: what it was counts no more.
CREATE TRIGGER swarm_step_counts_no_more BEFORE UPDATE ON swarm_steps BEGIN
  INSERT INTO swarm_shares (arm, path, name, blocks, out_of, steps)
  SELECT arm, path, name, blocks, out_of, -1 FROM swarm_step_shares
  WHERE arm = old.arm AND path = old.path AND step = old.step
  ON CONFLICT (arm, path, name, blocks, out_of) DO UPDATE SET steps = steps - 1;
END;
CREATE TRIGGER swarm_step_counts_again AFTER UPDATE ON swarm_steps BEGIN
  INSERT INTO swarm_shares (arm, path, name, blocks, out_of, steps)
  SELECT arm, path, name, blocks, out_of, 1 FROM swarm_step_shares
  WHERE arm = new.arm AND path = new.path AND step = new.step
  ON CONFLICT (arm, path, name, blocks, out_of) DO UPDATE SET steps = steps + 1;
END;

INSERT INTO swarm_shares (arm, path, name, blocks, out_of, steps)
SELECT arm, path, name, blocks, out_of, count(*) FROM swarm_step_shares
GROUP BY arm, path, name, blocks, out_of;
