-- A module may step while some of its paths are late (`outer.quorum`).

-- Modules that have their quorum and wait for the rest, until the grace is over.
CREATE TABLE quorums (
  arm     TEXT NOT NULL,
  module  TEXT NOT NULL,
  phase   INTEGER NOT NULL,
  epoch   TEXT NOT NULL,  -- which clock: after a reboot it begins anew
  until   REAL NOT NULL,  -- seconds of that clock
  PRIMARY KEY (arm, module, phase)
) WITHOUT ROWID;

-- Which contributions an outer step takes: said once, before it is done, so that it takes the same when it is done again.
CREATE TABLE taken (
  arm     TEXT NOT NULL,
  module  TEXT NOT NULL,
  phase   INTEGER NOT NULL,  -- of the contribution
  path    INTEGER NOT NULL,
  step    INTEGER NOT NULL,  -- the phase of the outer step; above `phase`: the contribution was late
  PRIMARY KEY (arm, module, phase, path)  -- a contribution counts once
) WITHOUT ROWID;
CREATE INDEX taken_by_step ON taken (arm, module, step);
