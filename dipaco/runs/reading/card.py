"""The model card of an export: the README.md that the Hugging Face Hub shows.

It says what the run's facts say. Licence and languages are left to the person who publishes it.
"""

import dipaco
from dipaco.control.planning.release import Release
from dipaco.evaluation.tables import literal, notes_as_markdown, quantity, render_markdown
from dipaco.model.config import num_parameters
from dipaco.plural import counted
from dipaco.runs.reading.report import make_report, shares_as_markdown
from dipaco.runs.run import Run

CARD = "README.md"
_LOAD = """\
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("{folder}")
tokenizer = AutoTokenizer.from_pretrained("{folder}")
"""


def model_card(
    run: Run,
    release: Release,
    path: int | None = None,
    *,
    is_gguf: bool = False,
    has_router: bool = False,
) -> str:
    """The card of one path, or of all (None) with their router, if there is one."""
    model, count = run.config.model, len(release.paths)
    modules = len({module for each in release.paths for module in each})
    title = counted(count, "path") if path is None else f"path {path} of {count}"
    kind = "GGUF file" if is_gguf else f"{'Qwen3' if model.qk_norm else 'Llama'} checkpoint"
    folder = "path_0000" if path is None else "."
    use = f"    llama-cli -m {folder}.gguf" if is_gguf else f"```python\n{_LOAD}```"
    choice = "In this folder:" if path is not None else "No router is here. For path 0:"
    if has_router:
        choice = (
            '`python route.py "And God said"` prints the number of the path for a prompt, by its '
            f"first {run.config.data.prefix_tokens} tokens. It needs numpy, PyTorch and "
            "transformers, no dipaco. Then, in this folder, for path 0:"
        )
    return f"""\
---
library_name: {"llama.cpp" if is_gguf else "transformers"}
pipeline_tag: text-generation
tags: [dipaco]
# license: the one you give these weights (the text's own licences must allow it)
# language: [en]
---

# {literal(run.config.name)}: {title}

A language model, trained with dipaco {dipaco.__version__} as
[DiPaCo](https://arxiv.org/abs/2403.10616) describes: `{release.arm}` after phase {release.phase},
{counted(count, "path")} through {counted(modules, "module")}. A prompt is answered by
one path: a {kind} of {quantity(num_parameters(model))} parameters, for
{model.max_length:,} tokens at most, of a vocabulary of {model.vocab_size:,}.

## How to use it

{choice}

{use.format(folder=folder)}
{_results(run)}
## Licence

Not stated yet. Before you publish this: say whose text it was trained on, name a licence that the
text's licences allow (above, without the `#`), and replace this paragraph.
"""


def _results(run: Run) -> str:
    if run.ledger.queue.unfinished():
        return "\n## Results\n\nThe run had not finished when this was written.\n"
    report = make_report(run)
    corpus = report.corpus
    return f"""
## Data

{corpus["documents"]:,} documents of {counted(int(corpus["domains"]), "domain")},
{quantity(float(corpus["tokens"]))} tokens. To train on, each path was given:

{shares_as_markdown(report.shards)}

## Results

Figures are those of the run's end.

{render_markdown(report.table)}

{notes_as_markdown(report.notes)}
"""
