-- Lists the outer steps of an arm that moved a module.
SELECT module, phase, gradient_norm, gradient_stats FROM modules
WHERE arm = :arm AND phase > 0 AND gradient_norm IS NOT NULL;
