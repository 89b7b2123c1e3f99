"""The ids of a run's model, and which of them its tokenizer has."""

from dipaco.runs.run import Run
from dipaco.serving.decoding.grammar import GrammarVocabulary


def vocabulary_of(run: Run) -> GrammarVocabulary:
    """What the loops of a run draw from."""
    corpus, size = run.corpus, run.config.model.vocab_size
    return GrammarVocabulary(corpus.tokenizer().library.to_str(), size, corpus.edges.tokens.end)
