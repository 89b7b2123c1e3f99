"""The page as one file, read as text: what it holds is what it was given."""

import json
import re

from dipaco.dashboard.page import MARKS, page


def test_a_run_may_contain_what_the_page_is_put_together_by():
    recording, texts = {"name": MARKS[2]}, {"beginnings": [*MARKS, "</script>"]}
    whole = page(json.dumps(recording).encode(), json.dumps(texts).encode()).decode()
    for name, content in (("recording", recording), ("texts", texts)):
        (held,) = re.findall(rf'<script type="application/json" id="{name}">(.*?)</script>', whole)
        assert json.loads(held) == content
    script = whole.rpartition("<script>")[2]
    assert "function drawTexts()" in script
    assert "function drawTexts()" not in whole.removesuffix(f"<script>{script}")
