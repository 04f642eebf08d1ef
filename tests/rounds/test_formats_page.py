"""docs/formats.md: its examples are valid, and its script converts what it says."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlkit.rounds.checkpoints import RLCheckpointLoader
from rlkit.rounds.schemas import load_schema
from rlkit.rounds.state import MetaFile, RoundFile

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
SCRIPTS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(
    ("example", "model"), list(zip(EXAMPLES, (MetaFile, RoundFile), strict=True))
)
def test_the_examples_are_whole_and_name_every_key(example, model):
    given = json.loads(example)
    model.model_validate_json(example)
    optional = {"schema_", "hops", "collector"}
    assert set(model.model_fields) - optional <= set(given)


@pytest.mark.parametrize(("example", "name"), list(zip(EXAMPLES, ("meta", "round"), strict=True)))
def test_the_examples_fit_the_json_schemas(example, name):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(example), load_schema(name))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**json.loads(example), "schema": 2}, load_schema(name))


def test_the_script_converts_a_log(tmp_path):
    rows = [
        {
            "qid": qid,
            "question": f"Question {qid}?",
            "queries": [f"clue {turn}", "other clue"],
            "found": [
                {"id": f"d{qid}{turn}", "title": "T", "text": "Useful text.", "useful": True},
                {"id": "same", "title": "S", "text": "Other text.", "useful": False},
            ],
        }
        for turn in (1, 2)
        for qid in ("a", "b")
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    script = tmp_path / "convert.py"
    script.write_text(SCRIPTS[-1], encoding="utf-8")
    subprocess.run(
        [sys.executable, script, log, tmp_path / "rounds"],
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    states = RLCheckpointLoader(tmp_path / "rounds").extract_training_samples()
    assert [state.state_id for state in states] == [
        "a/run_001/1",
        "a/run_001/2",
        "b/run_001/1",
        "b/run_001/2",
    ]
    assert states[1].seen_docids == ("da1", "same")
    assert states[1].known_important == {"da1", "da2"}
    assert states[1].recorded_discovery == 1.0
