"""The house keeps its own rules: layout, imports, notebooks, packages, the README's commands."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import rlkit
from rlkit.cli import build_parser

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = sorted([ROOT / "README.md", ROOT / "benchmarks" / "README.md", *ROOT.glob("docs/*.md")])
READMES = [ROOT / "README.md", ROOT / "docs" / "README.zh.md"]
# A file imports from its own layer and from those before it.
LAYERS = [
    ["errors", "files", "section", "yaml_text", "parameters", "config", "lineage", "run"],
    ["library"],
    ["demo"],
    ["rounds"],
    ["agents"],
    ["practice"],
    ["training"],
    ["results"],
    ["answers"],
    ["deploy"],
    ["tuning", "tune"],
    ["doctor", "notebook", "commands", "cli", "__main__"],
]
TORCH_ALLOWED = ("training", "deploy")


def layer(module: str) -> int:
    part = module.split(".")[1]
    return next(i for i, names in enumerate(LAYERS) if part in names)


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, module) of every import in a file, also inside functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            names = [f"rlkit.{a.name}" for a in node.names] if node.module == "rlkit" else []
            found += [(node.lineno, name) for name in names or [node.module]]
    return found


def sources() -> list[Path]:
    return [p for p in sorted((ROOT / "rlkit").rglob("*.py")) if p != ROOT / "rlkit/__init__.py"]


# ---- imports


def test_imports_run_one_way():
    wrong = []
    for path in sources():
        own = ".".join(["rlkit", *path.relative_to(ROOT / "rlkit").with_suffix("").parts])
        for line, module in imports(path):
            if module.startswith("rlkit.") and layer(module) > layer(own):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, wrong


def test_torch_is_imported_only_where_a_model_computes():
    heavy = ("torch", "transformers", "peft", "accelerate", "bitsandbytes")
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in sources()
        if path.relative_to(ROOT / "rlkit").parts[0] not in TORCH_ALLOWED
        for line, module in imports(path)
        if module.split(".")[0] in heavy
    ]
    assert not wrong, wrong


def test_import_rlkit_loads_no_torch_and_nothing_else_heavy():
    heavy = "('torch', 'transformers', 'pandas')"
    code = f"import sys, rlkit; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("name", rlkit.__all__)
def test_a_public_name_is_there(name):
    assert getattr(rlkit, name).__name__ == name


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="rlkit has no 'nothing'"):
        rlkit.nothing  # noqa: B018


# ---- packages


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_environment_yml_asks_for_what_pyproject_asks_for():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    python, _, pip = environment["dependencies"]
    wanted = project()["dependencies"] + project()["optional-dependencies"]["dev"]
    assert pip["pip"] == ["-c constraints.txt", *wanted]
    assert python == f"python{project()['requires-python']}"


def test_every_requirement_has_both_bounds_and_the_constraints_keep_them():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    exact = dict(line.lower().split("==") for line in lines if line and line[0] != "#")
    extras = project()["optional-dependencies"]
    for text in project()["dependencies"] + sum(extras.values(), []):
        requirement = Requirement(text)
        assert {s.operator for s in requirement.specifier} == {">=", "<"}, text
    for text in project()["dependencies"] + extras["dev"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(exact[requirement.name.lower()]), text
    assert exact["torch"] == "2.13.0"


def test_every_pip_line_that_installs_torch_names_its_version():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "TORCH := torch==2.13.0" in makefile
    assert all("$(TORCH)" in line or "--no-deps" in line
               for line in makefile.splitlines() if "pip install" in line)  # fmt: skip


def test_no_file_names_a_package_index_or_a_persons_folder():
    files = ["Makefile", "pyproject.toml", "constraints.txt", "environment.yml", ".ci/run"]
    for name in files:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"index-url|find-links|https?://", text), name
        assert not re.search(r"(?m)(?:^|[\s='\"])/(?!dev/)\w+/", text), name  # an absolute path


def test_extras_are_installed_from_this_folder_and_never_by_a_registrys_name():
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras, told = set(tool["project"]["optional-dependencies"]), set()
    files = [path for folder in ("rlkit", "docs", "params", "notebooks", "benchmarks")
             for path in (ROOT / folder).rglob("*")
             if path.suffix in (".py", ".md", ".yaml", ".ipynb")]  # fmt: skip
    for path in [*files, ROOT / "README.md", ROOT / "environment.yml"]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(rf"rlkit\[({'|'.join(extras)})", text), path
        told |= set(re.findall(r"'\.\[(\w+)\]'", text))
    assert told == extras


def test_templates_and_schemas_are_package_data():
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    patterns = tool["setuptools"]["package-data"]["rlkit"]
    for path in (ROOT / "rlkit").rglob("*"):
        if path.is_file() and path.suffix not in (".py", ".pyc"):
            assert f"**/*{path.suffix}" in patterns, path


# ---- notebooks


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs_and_with_a_literal_parameters_cell(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    cells = notebook["cells"]
    assert cells[0]["cell_type"] == "markdown" and "papermill" in "".join(cells[0]["source"])
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    tagged = [c for c in code if "parameters" in c["metadata"].get("tags", [])]
    assert len(tagged) == 1, "one cell is tagged parameters"
    for node in ast.parse("".join(tagged[0]["source"])).body:
        assert isinstance(node, ast.Assign), "the parameters cell holds assignments only"
        ast.literal_eval(node.value)
    text = "".join("".join(cell["source"]) for cell in code)
    assert "%pip" not in text and "sys.exit" not in text


# ---- the README


def commands(readme: Path) -> list[list[str]]:
    """Every command line in the README's shell blocks, without environment and comments."""
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", readme.read_text(encoding="utf-8"), re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_the_commands_of_a_readme_exist(readme):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    seen = set()
    for words in commands(readme):
        if words[0] == "make":
            seen.add(f"make {words[1]}")
            assert words[1] in targets, words
        elif words[0].endswith("papermill"):
            assert (ROOT / words[1]).is_file(), words
            assert (ROOT / words[words.index("-f") + 1]).is_file(), words
        elif words[0].endswith("python") and words[1:3] == ["-m", "rlkit"]:
            options = build_parser().parse_args(words[3:])
            assert getattr(options, "params", None) is None or (ROOT / options.params).is_file()
    assert {"make demo", "make test"} <= seen


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_links_of_a_page_lead_somewhere(page):
    for target, heading in re.findall(
        r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")
    ):
        if not target.startswith(("http://", "https://")):
            there = page.parent / target if target else page
            assert there.exists(), target
            assert not heading or heading in headings(there), f"{target}#{heading}"


def headings(page):
    """The anchors of a Markdown page, as GitHub names them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in found}


def test_ci_runs_the_readmes_test_command():
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
