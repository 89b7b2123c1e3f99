-- How many inner steps paths take in a phase, in arms where slow machines take fewer
-- (`inner.least_steps_share`).

-- Inner steps of a path in a phase: decided once, before it trains.
CREATE TABLE phase_steps (
  arm     TEXT NOT NULL,
  path    BIGINT NOT NULL,
  phase   BIGINT NOT NULL,
  steps   BIGINT NOT NULL,
  out_of  BIGINT NOT NULL,  -- that a path takes whose worker is as fast as any
  share   DOUBLE PRECISION NOT NULL,  -- of the fastest worker's tokens a second
  worker  TEXT NOT NULL,  -- that trains it, the last one; '': none had begun
  PRIMARY KEY (arm, path, phase)
);
CREATE INDEX phase_steps_by_phase ON phase_steps (arm, phase);
