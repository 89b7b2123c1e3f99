-- How far each path moved a module in the phase that made it, and how much the paths agree on where to.

ALTER TABLE modules ADD COLUMN moves TEXT;  -- JSON: [{path: norm}, mean cosine]; NULL: nobody moved it
