"""The examples of deploy/ can be parsed, and say what the server takes. They were not run."""

import ast
import configparser
import re
from pathlib import Path

import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"


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
    from transduct.interfaces import cli

    known = {name.replace("_", "-") for name in vars(cli.Operation())} | {"host", "port"}
    texts = [path.read_text() for path in DEPLOY.iterdir() if path.name != "Dockerfile"]
    asked = {word for text in texts for word in re.findall(r"--([a-z][a-z-]+)", text)}
    assert asked
    assert asked <= known
