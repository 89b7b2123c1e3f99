-- Documents are routed anew at given phases, paths are scored on the router's documents and checked on
-- what their shards hold out, and not every path takes part in every phase.

ALTER TABLE tasks DROP CONSTRAINT tasks_kind_check;
ALTER TABLE tasks ADD CONSTRAINT tasks_kind_check CHECK (kind IN
  ('prepare', 'pretrain', 'route', 'train', 'outer', 'label', 'check', 'score', 'evaluate',
   'reroute', 'report'));

ALTER TABLE stages ADD COLUMN phase BIGINT NOT NULL DEFAULT 0;  -- of an alternation; every version stays
ALTER TABLE stages DROP CONSTRAINT stages_pkey;
ALTER TABLE stages ADD PRIMARY KEY (stage, phase);

-- Log-likelihoods of the router's documents.
CREATE TABLE labels (
  arm        TEXT NOT NULL,
  path       BIGINT NOT NULL,
  phase      BIGINT NOT NULL,
  name       TEXT NOT NULL,
  digest     TEXT NOT NULL,
  num_bytes  BIGINT NOT NULL,
  seconds    DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (arm, path, phase)
);

-- How well a path predicts what its shard holds out.
CREATE TABLE checks (
  arm         TEXT NOT NULL,
  path        BIGINT NOT NULL,
  phase       BIGINT NOT NULL,
  loss        DOUBLE PRECISION NOT NULL,
  best_phase  BIGINT NOT NULL,
  seconds     DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (arm, path, phase)
);

ALTER TABLE trained ADD COLUMN position BIGINT NOT NULL DEFAULT 0;  -- in the data of `batches`
UPDATE trained SET position = step;
