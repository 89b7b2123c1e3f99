-- Lists the phases that paths went through, with the end of the text of their losses.
SELECT arm, path, phase, tokens, seconds, bytes_down, bytes_up,
       norm_mean, norm_largest,
       substr(losses, CASE WHEN length(losses) > 30 THEN length(losses) - 29 ELSE 1 END)
FROM trained;
