"""Renders the manifests under k8s/ with `kubectl kustomize` and knows how to find things in what comes out."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
K8S = REPOSITORY / "k8s"
OLDEST_KUBECTL = (1, 21)  # the kustomize of older ones takes no folders under `resources`


class Skipped(Exception):
    """Something that the tests need is not on this machine; the text says what and how to get it."""


def import_yaml_and_schemas():
    """The modules yaml and kubernetes_validate, from this Python or from .deps/check. Throws Skipped without them."""
    for site in (REPOSITORY / ".deps/check").glob("lib/python3.*/site-packages"):
        if site.parent.name == f"python3.{sys.version_info.minor}":
            sys.path.append(str(site))
    try:
        import kubernetes_validate
        import yaml
    except ImportError as error:
        raise Skipped(f"Python module {error.name} is missing; ./setup --check installs it") from error
    return yaml, kubernetes_validate


def kubectl():
    path = shutil.which("kubectl")
    if path is None:
        raise Skipped("kubectl is missing; ./setup --check installs Debian's kubernetes-client")
    return path


def check_kubectl():
    """Throws Skipped when kubectl is missing or too old for the manifests."""
    path = kubectl()
    done = subprocess.run([path, "version", "--client", "--output=json"], capture_output=True, text=True, check=True)
    version = json.loads(done.stdout)["clientVersion"]
    if (int(version["major"]), int(version["minor"].rstrip("+"))) < OLDEST_KUBECTL:
        raise Skipped(f"{path} is {version['gitVersion']}; the manifests need 1.21 or newer, such as Debian 13 has")


def folders():
    """Every folder of k8s/ that kustomize reads."""
    return sorted(path.parent for path in K8S.rglob("kustomization.yaml"))


def kustomizations():
    """Those that are meant to be applied with `kubectl apply -k`; the others are components of such."""
    return [folder for folder in folders() if "\nkind: Kustomization\n" in (folder / "kustomization.yaml").read_text()]


def kustomize(folder):
    return subprocess.run([kubectl(), "kustomize", str(folder)], capture_output=True, text=True, check=False)


def warnings(folder):
    """What kustomize says about deprecated fields."""
    return kustomize(folder).stderr


def render(folder, yaml):
    """The objects of one kustomization, as dictionaries."""
    done = kustomize(folder)
    if done.returncode != 0:
        raise AssertionError(f"kubectl kustomize {folder} failed: {done.stderr.strip()}")
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def label(thing):
    """How messages call an object: "StatefulSet allot-aggregator"."""
    return f"{thing['kind']} {thing['metadata']['name']}"


def of_kind(objects, *kinds):
    return [thing for thing in objects if thing["kind"] in kinds]


def pod_templates(objects):
    """(object, labels, pod spec) of everything that makes pods."""
    found = []
    for thing in objects:
        if thing["kind"] == "Pod":
            found.append((thing, thing["metadata"].get("labels", {}), thing["spec"]))
        elif "template" in thing.get("spec", {}) and thing["kind"] in {"Deployment", "StatefulSet", "Job", "DaemonSet"}:
            template = thing["spec"]["template"]
            found.append((thing, template["metadata"].get("labels", {}), template["spec"]))
    return found


def containers(pod):
    return pod.get("initContainers", []) + pod["containers"]


def component(objects, name):
    """The pod specs of one component ("aggregator", "worker") with the objects they belong to."""
    return [(thing, pod) for thing, labels, pod in pod_templates(objects)
            if labels.get("app.kubernetes.io/component") == name]


def matches(selector, labels):
    """Whether a label selector of matchLabels alone selects the labels; the empty one selects all."""
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())


def mebibytes(quantity):
    """Of a quantity as the manifests write memory and storage."""
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()
    return int(number) * {"Mi": 1, "Gi": 1024}[unit]


def argument(container, name):
    """The value of --name=value in a container's arguments, or None."""
    prefix = f"--{name}="
    return next((word[len(prefix):] for word in container.get("args", []) if word.startswith(prefix)), None)
