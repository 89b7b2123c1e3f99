-- How many inner steps paths take in a phase, in arms where slow machines take fewer
-- (`inner.least_steps_share`).

-- Inner steps of a path in a phase: decided once, before it trains.
CREATE TABLE phase_steps (
  arm     TEXT NOT NULL,
  path    INTEGER NOT NULL,
  phase   INTEGER NOT NULL,
  steps   INTEGER NOT NULL,
  out_of  INTEGER NOT NULL,  -- that a path takes whose worker is as fast as any
  share   REAL NOT NULL,  -- of the fastest worker's tokens a second
  worker  TEXT NOT NULL,  -- that trains it, the last one; '': none had begun
  PRIMARY KEY (arm, path, phase)
) WITHOUT ROWID;
CREATE INDEX phase_steps_by_phase ON phase_steps (arm, phase);
