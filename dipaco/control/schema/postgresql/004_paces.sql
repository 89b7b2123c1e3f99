-- How long contributions take, in arms with a quorum (`outer.quorum`), and how many inner steps
-- paths take in a phase, in arms where slow machines take fewer (`inner.least_steps_share`).

-- Since when a module waits for the contributions of a phase, and for how long the step waits for
-- the rest once enough are in: decided once.
CREATE TABLE graces (
  arm                TEXT NOT NULL,
  module             TEXT NOT NULL,
  phase              BIGINT NOT NULL,
  epoch              TEXT NOT NULL,  -- which clock: after a reboot it starts at zero
  since              DOUBLE PRECISION NOT NULL,  -- seconds of that clock
  quorum_seconds     DOUBLE PRECISION,  -- after `since` enough were in; NULL: not yet, or the last was one
  grace_seconds      DOUBLE PRECISION,  -- for which the rest are waited for
  median_seconds     DOUBLE PRECISION,  -- of earlier contributions; NULL: too few, or the grace is fixed
  deviation_seconds  DOUBLE PRECISION,  -- from it, the median
  PRIMARY KEY (arm, module, phase)
);

-- How long contributions took; without those that were counted by another clock.
CREATE TABLE arrivals (
  arm      TEXT NOT NULL,
  module   TEXT NOT NULL,
  phase    BIGINT NOT NULL,
  path     BIGINT NOT NULL,
  seconds  DOUBLE PRECISION NOT NULL,  -- since the module was at that phase
  PRIMARY KEY (arm, module, phase, path)
);

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
