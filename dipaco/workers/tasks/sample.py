"""`sample`: a few prompts of the run's own domains, continued by a release, to be read by people.

Each by the path that evaluation routed its document to. The seed is the run's: every release draws
with the same random numbers, so that texts differ by what was trained and by nothing else.
"""

import numpy as np

from dipaco.control.planning.tasks import Claim, Fact, Sample, Sampled
from dipaco.data.prompts import prompt_rows
from dipaco.data.windows import first_tokens
from dipaco.evaluation.samples import continue_prompts
from dipaco.runs.run import Run
from dipaco.workers.fetching import bring_release
from dipaco.workers.scoring import held_documents, routed_paths

# A small model repeats itself at 0, and makes few words at 1. Samples are for reading.
TEMPERATURE = 0.7


def sample_release(run: Run, claim: Claim) -> list[Fact]:
    """Continues the run's prompts with the paths of one release."""
    arm, phase = claim.task.arm, claim.task.phase
    release, settings = run.ledger.facts.release(arm, phase), run.config.samples
    held = held_documents(run, arm, phase)
    (test_M,) = np.nonzero(held.is_test)
    domain_M = run.corpus.domains[held.documents[test_M]]
    rows = test_M[prompt_rows(domain_M.tolist(), settings.prompts)]
    documents = held.documents[rows]
    corpus = run.tokens_of(held.documents)
    prompt_NT, _ = first_tokens(corpus, documents, run.config.data.prefix_tokens)
    path_N = routed_paths(run, held, arm, phase)[rows]
    token_NS = np.zeros((len(rows), settings.tokens), np.int32)
    for path in np.unique(path_N).tolist():
        (own,) = np.nonzero(path_N == path)
        bring_release(run, release, path)
        token_NS[own] = continue_prompts(
            run.config.model,
            run.path_of(release, path),
            prompt_NT[own],
            own.tolist(),
            steps=settings.tokens,
            temperature=TEMPERATURE,
            seed=run.seed_for("samples"),
        )
    samples = (
        _sample(run, *of)
        for of in zip(documents.tolist(), path_N.tolist(), prompt_NT, token_NS, strict=True)
    )
    return [Sampled(arm=arm, phase=phase, samples=tuple(samples))]


def _sample(
    run: Run, document: int, path: int, prompt_T: np.ndarray, token_S: np.ndarray
) -> Sample:
    ids, end = token_S.tolist(), run.corpus.edges.tokens.end
    has_ended = end in ids
    ids = ids[: ids.index(end)] if has_ended else ids
    tokenizer = run.corpus.tokenizer()
    # A character that the prompt cuts in two belongs to the text, which may complete it.
    prompt = tokenizer.decode(prompt_T.tolist()).rstrip("\ufffd")
    return Sample(
        domain=run.corpus.domain_names[int(run.corpus.domains[document])],
        document=document,
        path=path,
        prompt=prompt,
        text=tokenizer.decode([*prompt_T.tolist(), *ids])[len(prompt) :],
        num_tokens=len(ids),
        has_ended=has_ended,
    )
