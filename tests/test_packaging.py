"""What the files around the code promise: one lock, one list of dependencies, one-way imports."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from fdn import paths
from fdn.cli.packages import EXTRAS

ROOT = Path(__file__).resolve().parent.parent
ACCELERATOR = re.compile("nvidia-|cuda-")  # companions that the CUDA build of torch pins itself


def lock_lines() -> list[str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def locked() -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lock_lines())}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def extras_of_make_env() -> dict[str, list[str]]:
    return {name: texts for name, texts in project()["optional-dependencies"].items() if name != "rivals"}


def requirements() -> list[Requirement]:
    """Of the project and of the extras that `make env` installs."""
    extras = extras_of_make_env().values()
    return [Requirement(text) for group in (project()["dependencies"], *extras) for text in group]


def test_lock_is_nothing_but_exact_pins():
    pin = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.]*")  # no hash, marker or local tag
    assert [line for line in lock_lines() if not pin.fullmatch(line)] == []
    assert len(locked()) == len(lock_lines()), "a package is pinned twice"
    assert locked()["torch"] == "2.13.0"


def test_lock_pins_every_dependency_at_an_allowed_version():
    pins = locked()
    for requirement in [*requirements(), *map(Requirement, project()["optional-dependencies"]["rivals"])]:
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"requirements.lock lacks {requirement.name}; pin it there"
        assert requirement.specifier.contains(pin), f"{requirement} does not allow the pinned {pin}"


def test_lock_suits_the_oldest_python_311_in_use():
    """Debian 12 has Python 3.11.2; a release may ask for a later patch version."""
    for name in locked():
        try:
            needs = metadata.metadata(name).get("Requires-Python")
        except metadata.PackageNotFoundError:
            continue
        if metadata.version(name).split("+")[0] == locked()[name]:
            assert SpecifierSet(needs or "").contains("3.11.2"), f"{name} {locked()[name]} needs Python {needs}"


def made_from_the_lock() -> bool:
    installed = {canonicalize_name(it.name): it.version.split("+")[0] for it in metadata.distributions()}
    same = all(installed[name] == pin for name, pin in locked().items() if name in installed)
    return same and sys.platform == "linux" and sys.version_info[:2] == (3, 11)


def test_lock_pins_what_the_dependencies_need_in_turn():
    if not made_from_the_lock():
        pytest.skip("this environment is not the one that the lock describes: make env, Linux, Python 3.11")
    todo = requirements()
    seen: dict[str, set[str]] = {}  # package -> extras already followed
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if ACCELERATOR.match(name) or (name in seen and requirement.extras <= seen[name]):
            continue
        seen[name] = seen.get(name, set()) | requirement.extras
        for text in metadata.requires(name) or ():
            child = Requirement(text)
            extras = seen[name] | {""}
            if child.marker is None or any(child.marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(child)
    assert len(seen) > 50
    assert sorted(set(seen) - set(locked())) == []


def test_fitting_and_predicting_need_the_core_only():
    """The modules that they import belong to the standard library, to the core's dependencies or to what these need."""
    program = """
import sys
import fdn
data = fdn.load("step")
fit = fdn.fit(fdn.model_spec("LP-FDNet", 1, fdn.PUBLISHED), data, fdn.get_protocol("published", epochs=1), [0])
fit.predict(0, data.x_test[:5])
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    extras = {Requirement(text).name for group in project()["optional-dependencies"].values() for text in group}
    modules = {name for name, origin in metadata.packages_distributions().items() if extras & set(origin)}
    assert {"matplotlib", "openpyxl", "papermill"} <= modules
    assert (modules | {"sklearn"}) & set(done.stdout.split()) == set(), "scikit-learn takes a second to import"


def test_make_env_installs_the_extras():
    [extras] = re.findall(r"-e '\.\[(.*)\]'$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(extras.split(",")) == sorted(extras_of_make_env())


def test_triton_is_a_dependency_where_it_has_wheels():
    [marker] = [it.marker for it in map(Requirement, project()["dependencies"]) if it.name == "triton"]

    def wanted(system: str, machine: str) -> bool:
        return marker.evaluate({"sys_platform": system, "platform_machine": machine})

    assert wanted("linux", "x86_64") and wanted("linux", "aarch64")
    assert not any(wanted(*it) for it in [("darwin", "arm64"), ("win32", "AMD64"), ("linux", "ppc64le")])


def test_environment_yml_is_no_second_list_of_versions():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    extras = ",".join(extras_of_make_env())
    assert environment["dependencies"] == ["python=3.11", "pip", {"pip": [f"-e .[{extras}]"]}]


def test_ci_runs_what_the_readme_says():
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK) and subprocess.run(["bash", "-n", run]).returncode == 0
    assert re.findall(r"^make (\w+)", run.read_text(encoding="utf-8"), re.MULTILINE) == ["test", "lint", "check"]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]


def tracked_texts() -> dict[str, str]:
    try:
        listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    texts = {}
    for name in filter(None, listed.stdout.decode().split("\0")):
        content = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b""
        if b"\0" not in content:
            texts[name] = content.decode(errors="replace")
    return texts


def test_tracked_files_name_no_registry_and_no_path_of_a_machine():
    hosts = "|".join(["pypi", "pythonhosted", r"download\.pytorch", "anaconda", "npmjs"])
    folders = "|".join(["work", "root", "tmp", "home", "opt", "Users"])
    forbidden = re.compile(rf"(?:{hosts})\.org|(?<![\w.])/(?:{folders})/")
    assert forbidden.search("in /" + "tmp/x") and not forbidden.search("in out/tmp/x")
    texts = tracked_texts().items()
    assert [f"{name}: {hit.group()}" for name, text in texts for hit in forbidden.finditer(text)] == []


def test_ignored_files_are_results_of_runs_and_never_sources():
    def ignored(name: str) -> bool:
        ours_alone = ["-c", f"core.excludesFile={os.devnull}"]
        command = ["git", "-C", str(ROOT), *ours_alone, "check-ignore", "--quiet", "--no-index", name]
        return subprocess.run(command).returncode == 0

    tracked_texts()  # skips outside a git checkout
    assert all(map(ignored, ["out/metrics.parquet", "data/raw/Folds5x2_pp.xlsx", ".venv/bin/python"]))
    assert not any(map(ignored, ["lib/fdn/data/uci.py", "data/results/metrics.parquet", "notebooks/01.ipynb"]))


ROOMS = (
    "ground",
    "data",
    "models",
    "training",
    "nn",
    "estimators",
    "runs",
    "timing",
    "report",
    "workflow",
    "cli",
)  # from the ground up
GROUND = {
    "arguments", "devices", "errors", "metrics", "paths", "protocol", "settings", "streams", "terminal", "typesetting",
}  # fmt: skip


def imported(source: str) -> set[str]:
    """Names that a file imports, wherever in the file it does so; of ``from a import b``, a.b."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room(module: str) -> str:
    """Where ``fdn.models.zoo`` stands, "models"; the package itself, whose names are of all rooms, is "fdn"."""
    name = module.removeprefix("fdn.").partition(".")[0]
    return "ground" if name in GROUND else "cli" if name == "__main__" else name


def imports_upwards(module: str, source: str) -> list[str]:
    """What a module of the package imports from anywhere but its own room, those below and the libraries."""
    below = ROOMS[: ROOMS.index(room(module)) + 1] if room(module) in ROOMS else ROOMS[:1]
    return sorted(
        name for name in imported(source)
        if (top := name.partition(".")[0]) in ("lib", "notebooks", "tests") or top == "fdn" and room(name) not in below
    )  # fmt: skip


def sources(root: Path, package: str) -> dict[str, str]:
    """The text of every module, by its name."""
    files = {".".join(path.relative_to(root).with_suffix("").parts): path for path in (root / package).rglob("*.py")}
    return {name.removesuffix(".__init__"): path.read_text(encoding="utf-8") for name, path in files.items()}


def test_rooms_import_from_those_below_alone():
    modules = sources(ROOT / "lib", "fdn")
    assert {room(name) for name in modules} == {"fdn", *ROOMS}, "a module stands in no room: give it a place in ROOMS"
    assert {name.partition(".")[2] for name in modules if room(name) == "ground"} == GROUND
    assert {name: found for name, text in modules.items() if (found := imports_upwards(name, text))} == {}


def test_kernels_import_nothing_of_the_package():
    modules = sources(ROOT, "fdn_kernels")
    assert len(modules) > 5
    tops = {name: {it.partition(".")[0] for it in imported(text)} for name, text in modules.items()}
    assert {name for name, found in tops.items() if found & {"fdn", "lib", "notebooks", "tests"}} == set()


@pytest.mark.parametrize(
    ("module", "planted", "found"),
    [
        ("fdn.protocol", "from fdn import data, paths", ["fdn.data"]),
        ("fdn.data.uci", "import fdn.models.zoo as zoo", ["fdn.models.zoo"]),
        ("fdn.runs.extras", "def f():\n    from fdn.report import tables", ["fdn.report.tables"]),
        ("fdn.timing.latency", "from fdn.runs import extras", []),
        ("fdn.report.site", "from fdn.workflow.study import plan", ["fdn.workflow.study.plan"]),
        ("fdn.workflow.study", "if True:\n    from fdn import cli", ["fdn.cli"]),
        ("fdn", "from fdn.models import MODELS", ["fdn.models.MODELS"]),
        ("fdn.report.claims.judging", "import fdn\nfrom fdn import fit", ["fdn", "fdn.fit"]),
        ("fdn.cli", "from fdn.workflow import study\nimport tests.fake_results", ["tests.fake_results"]),
    ],
)
def test_an_import_from_above_is_found(module, planted, found):
    assert imports_upwards(module, planted) == found


def test_packages_beyond_the_core_are_those_that_the_command_line_can_tell_the_extra_of():
    origins = {
        module: {canonicalize_name(name) for name in names}
        for module, names in metadata.packages_distributions().items()
    }
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "lib").rglob("*.py")]
    used = {name.partition(".")[0] for source in sources for name in imported(source)}
    used -= {*sys.stdlib_module_names, "fdn", "fdn_kernels"}
    core = {canonicalize_name(Requirement(text).name) for text in project()["dependencies"]}
    beyond = {module for module in used if not origins.get(module, set()) & core}
    table = {module: extra for extra, modules in EXTRAS.items() for module in modules}
    assert {"matplotlib", "papermill"} <= beyond and beyond - set(table) == set()
    for extra, texts in project()["optional-dependencies"].items():
        listed = {canonicalize_name(Requirement(text).name) for text in texts}
        brought = {module for module in table if origins.get(module, set()) & listed}
        assert {table[module] for module in brought} <= {extra}
    assert set(EXTRAS) <= set(project()["optional-dependencies"])


def test_every_module_imports_without_triton():
    """Takes as long as importing everything does, in a process of its own."""
    program = """
import importlib, pkgutil, sys
sys.modules["triton"] = None  # as if it were not installed
import fdn, fdn_kernels
for package in (fdn_kernels, fdn):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name.startswith(("fdn_kernels.triton.", "fdn_kernels.aot")):  # the kernels themselves
            continue
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


@pytest.mark.check
def test_a_wheel_has_all_that_the_commands_for_own_data_need(tmp_path):
    """The notebook of the report among them; takes as long as building a wheel does."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT]
    subprocess.run(command, check=True)
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    installed = paths.report().relative_to(paths.NOTEBOOKS).as_posix()
    assert any(name.endswith(f".data/data/share/fdn/{installed}") for name in names)
    modules = {path.relative_to(ROOT / "lib").as_posix() for path in (ROOT / "lib" / "fdn").rglob("*.py")}
    assert modules <= set(names)
