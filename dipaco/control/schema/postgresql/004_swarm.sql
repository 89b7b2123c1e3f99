-- Volunteers: who has a pass, which paths are trained by a swarm, and how far each swarm is.

CREATE TABLE swarm_passes (
  serial     TEXT PRIMARY KEY,
  name       TEXT NOT NULL,
  role       TEXT NOT NULL CHECK (role IN ('volunteer', 'backbone')),
  not_after  DOUBLE PRECISION NOT NULL,                  -- wall clock: volunteers are elsewhere
  revoked    BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX swarm_passes_by_name ON swarm_passes (name);

-- A path that has a backbone here is left to it by all other workers.
CREATE TABLE swarm_backbones (
  worker   TEXT PRIMARY KEY,                 -- in the roster, which knows whether it lives
  arm      TEXT NOT NULL,
  subject  TEXT NOT NULL,
  address  TEXT NOT NULL                     -- where peers reach it
);

-- Every group step that was taken, and whose rows were in it.
CREATE TABLE swarm_steps (
  arm      TEXT NOT NULL,
  path     BIGINT NOT NULL,
  step     BIGINT NOT NULL,
  lineage  TEXT NOT NULL,                    -- of the state after it
  loss     DOUBLE PRECISION NOT NULL,
  targets  DOUBLE PRECISION NOT NULL,
  seconds  DOUBLE PRECISION NOT NULL,
  blocks   TEXT NOT NULL,                    -- JSON: peer -> blocks of the step's batch
  PRIMARY KEY (arm, path, step)
);

CREATE TABLE swarm_status (
  arm     TEXT NOT NULL,
  path    BIGINT NOT NULL,
  leader  TEXT NOT NULL,                     -- the worker that leads
  status  TEXT NOT NULL,                     -- JSON: what `dipaco status` shows
  PRIMARY KEY (arm, path)
);
