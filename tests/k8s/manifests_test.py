#!/usr/bin/env python3
"""Tests of the manifests under k8s/: what `kubectl kustomize` makes of every folder is held against the schemas of
Kubernetes, against the policy of policy.py and against the tools that the containers start; docs/operations.md against both.

    manifests_test.py [CLASS]       one class of tests, or all

Environment: ALLOT_BIN_DIR, a folder with allot and an allot-model beside it. Needs kubectl and the modules yaml and
kubernetes_validate; says what is missing and exits 77 without them.
"""

import copy
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

import manifests
import policy
from manifests import K8S, REPOSITORY, component, label, of_kind

# podFailurePolicy is stable since 1.31, podReplacementPolicy on by default since 1.29: nothing older is supported. The
# newest schemas are those of the pinned kubernetes-validate.
OLDEST_KUBERNETES = "1.31"
# Kinds of extensions, whose fields policy.py checks.
EXTENSIONS = {"ServiceMonitor", "PrometheusRule"}
# What current kustomize takes without a warning: no `bases`, no `patchesStrategicMerge`.
KUSTOMIZATION_KEYS = {"apiVersion", "kind", "resources", "components", "configMapGenerator", "images", "patches"}
CONFIG_OPTION = "--config=/etc/allot/config/run.conf"


class Rendered(unittest.TestCase):
    """Tests over all kustomizations, each rendered once."""

    rendered = {}  # folder -> objects; filled by main

    def each(self):
        return ((folder.relative_to(REPOSITORY), objects) for folder, objects in self.rendered.items())


class FitTheSchemasOfKubernetes(Rendered):
    def test_every_object_in_the_oldest_and_in_the_newest(self):
        for version in (OLDEST_KUBERNETES, kubernetes_validate.latest_version()):
            for folder, objects in self.each():
                for thing in objects:
                    if thing["kind"] in EXTENSIONS:
                        continue
                    try:
                        kubernetes_validate.validate(thing, version, strict=True)
                    except kubernetes_validate.ValidationError as error:
                        place = ".".join(str(step) for step in error.path)
                        self.fail(f"{folder}: {label(thing)}: {place}: {error.message} (Kubernetes {version})")

    def test_an_unknown_field_is_found(self):
        (thing,) = of_kind(self.rendered[K8S / "base"], "StatefulSet")
        thing = copy.deepcopy(thing)
        thing["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
        with self.assertRaisesRegex(kubernetes_validate.ValidationError, "livenessProb"):
            kubernetes_validate.validate(thing, kubernetes_validate.latest_version(), strict=True)

    def test_kustomizations_use_no_deprecated_field(self):
        for folder in manifests.folders():
            content = yaml.safe_load((folder / "kustomization.yaml").read_text())
            self.assertLessEqual(set(content), KUSTOMIZATION_KEYS, folder)
        for folder in manifests.kustomizations():
            self.assertEqual(manifests.warnings(folder), "", folder)

    def test_a_deprecated_field_is_found(self):
        with tempfile.TemporaryDirectory() as directory:
            folder = pathlib.Path(directory)
            (folder / "map.yaml").write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: one}}\n")
            (folder / "kustomization.yaml").write_text("resources: [map.yaml]\npatchesStrategicMerge: [map.yaml]\n")
            self.assertIn("patchesStrategicMerge", manifests.warnings(folder))

    def test_no_manifest_is_left_out(self):
        for folder in manifests.folders():
            content = yaml.safe_load((folder / "kustomization.yaml").read_text())
            named = {name for name in content.get("resources", []) if name.endswith(".yaml")}
            named |= {patch["path"] for patch in content.get("patches", [])}
            there = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
            self.assertEqual(named, there, folder)


class KeepThePolicy(Rendered):
    def test_every_kustomization(self):
        found = {str(folder): policy.faults(objects) for folder, objects in self.each()}
        self.assertEqual({folder: faults for folder, faults in found.items() if faults}, {})

    def test_deployment_and_job_run_the_same_worker(self):
        (of_deployment,) = (pod for _, pod in component(self.rendered[K8S / "overlays/deployment"], "worker"))
        (of_job,) = (copy.deepcopy(pod) for _, pod in component(self.rendered[K8S / "overlays/job"], "worker"))
        of_job.pop("restartPolicy")
        for option in ("--exit-when-finished", "--drained-exit-code=143"):
            of_job["containers"][0]["args"].remove(option)
        self.assertEqual(of_job, of_deployment)

    def test_every_kustomization_goes_into_a_namespace_that_enforces_the_restricted_profile(self):
        (namespace,) = self.rendered[K8S / "namespace"]
        self.assertEqual((namespace["kind"], namespace["metadata"]["name"]), ("Namespace", policy.NAMESPACE))

    def test_removing_a_run_removes_neither_its_volume_nor_the_inputs_nor_the_namespace(self):
        for folder, objects in self.each():
            if component(objects, "aggregator"):
                self.assertFalse(of_kind(objects, "PersistentVolumeClaim", "Secret", *policy.CLUSTER_SCOPED), folder)
                (aggregator,) = of_kind(objects, "StatefulSet")
                self.assertEqual(aggregator["spec"]["persistentVolumeClaimRetentionPolicy"],
                                 {"whenDeleted": "Retain", "whenScaled": "Retain"}, folder)

    def test_priorities_made_elsewhere_are_made(self):
        made = {thing["metadata"]["name"] for thing in of_kind(self.rendered[K8S / "priorities"], "PriorityClass")}
        self.assertEqual(made, policy.PRIORITIES_MADE_ELSEWHERE)

    def test_deployment_and_job_can_work_for_one_run(self):
        both = self.rendered[K8S / "overlays/deployment"] + of_kind(self.rendered[K8S / "overlays/job"], "Job")
        self.assertEqual(list(policy.budget_faults(both)), [])
        budget = next(thing for thing in of_kind(both, "PodDisruptionBudget") if "worker" in thing["metadata"]["name"])
        selected = [thing["kind"] for thing, labels, _ in manifests.pod_templates(both)
                    if manifests.matches(budget["spec"]["selector"], labels)]
        self.assertEqual(selected, ["Deployment"])

    def test_the_pod_that_copies_runs_finds_the_node_of_the_aggregator(self):
        both = self.rendered[K8S / "base"] + self.rendered[K8S / "runs"]
        self.assertEqual(list(policy.shared_volume_faults(both)), [])

    def test_http_is_open_only_where_something_scrapes(self):
        for folder, objects in self.each():
            rules = [rule for thing in of_kind(objects, "NetworkPolicy") for rule in thing["spec"].get("ingress", [])]
            self.assertEqual(8080 in policy.port_numbers(rules), folder.name == "prometheus", folder)

    def test_claims_made_elsewhere_are_made(self):
        (claim,) = of_kind(self.rendered[K8S / "inputs"], "PersistentVolumeClaim")
        (aggregator,) = of_kind(self.rendered[K8S / "base"], "StatefulSet")
        (template,) = aggregator["spec"]["volumeClaimTemplates"]
        self.assertEqual({claim["metadata"]["name"], f"{template['metadata']['name']}-{aggregator['metadata']['name']}-0"},
                         policy.CLAIMS_MADE_ELSEWHERE)

    def test_spot_overlay_demands_spot_nodes(self):
        (pod,) = (pod for _, pod in component(self.rendered[K8S / "overlays/spot"], "worker"))
        self.assertLessEqual(set(pod["nodeSelector"]), policy.SPOT_LABELS)

    def test_kueue_overlay_waits_in_a_queue(self):
        (job,) = of_kind(self.rendered[K8S / "overlays/kueue"], "Job")
        self.assertTrue(job["spec"]["suspend"])
        self.assertEqual(job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "allot")

    def test_prometheus_overlay_scrapes(self):
        self.assertEqual(len(of_kind(self.rendered[K8S / "overlays/prometheus"], "ServiceMonitor")), 1)


class PolicyFindsFaults(Rendered):
    """Each rule of the policy sees its fault: the manifests with one thing changed are no longer clean."""

    def objects(self, overlay):
        return copy.deepcopy(self.rendered[K8S / "overlays" / overlay])

    def assert_finds(self, overlay, change, *words):
        objects = self.objects(overlay)
        change(objects)
        found = "\n".join(policy.faults(objects))
        for word in words:
            self.assertIn(word, found)

    @staticmethod
    def pod(objects, name):
        return component(objects, name)[0][1]

    def container(self, objects, name="worker"):
        return self.pod(objects, name)["containers"][0]

    def test_images(self):
        for image in ("registry.example.com/allot/worker:latest", "registry.example.com/allot/worker",
                      "registry.example.com:5000/allot/worker", "registry.example.com/allot/worker:0.0.9"):
            self.assert_finds("deployment", lambda made, i=image: self.container(made).update(image=i), image)
        made = copy.deepcopy(self.rendered[K8S / "runs"])
        self.assertEqual(policy.faults(made), [])
        made[0]["spec"]["containers"][0]["image"] = "docker.io/library/busybox:1.37.0"
        self.assertIn("no digest", "".join(policy.faults(made)))

    def test_resources(self):
        self.assert_finds("job", lambda made: self.container(made)["resources"]["limits"].pop("memory"), "no memory")
        self.assert_finds("job", lambda made: self.container(made)["resources"]["limits"].pop("nvidia.com/gpu"), "gpu")
        self.assert_finds("job", lambda made: self.container(made, "aggregator")["resources"]["limits"].update(cpu="2"),
                          "1 CPU and 256Mi")
        for name in ("aggregator", "worker"):
            self.assert_finds("job", lambda made, n=name: self.container(made, n)["resources"]["limits"].update(
                {"ephemeral-storage": "256Mi"}), "too little for its log")
        self.assert_finds("job", lambda made: self.pod(made, "worker")["volumes"][-1]["emptyDir"].update(sizeLimit="1Gi"),
                          "1154Mi are needed")

    def test_priorities(self):
        def found(change):
            made = copy.deepcopy(self.rendered[K8S / "priorities"])
            change({thing["metadata"]["name"]: thing for thing in made})
            return "\n".join(policy.faults(made))

        self.assertEqual(found(lambda classes: None), "")
        self.assertIn("no autoscaler adds a node", found(lambda classes: classes["allot-worker"].update(value=-1000)))
        self.assertIn("drives others out", found(lambda classes: classes["allot-worker"].update(value=0)))
        self.assertIn("drives others out", found(lambda classes: classes["allot-worker"].pop("preemptionPolicy")))
        self.assertIn("not allot's", found(lambda classes: classes["allot-worker"].update(globalDefault=True)))
        self.assertIn("not one of", found(lambda classes: classes["allot-worker"]["metadata"].update(name="low")))
        self.assert_finds("job", lambda made: made.extend(self.rendered[K8S / "priorities"]), "deleted with one run")

    def test_scale(self):
        self.assert_finds("deployment", lambda made: of_kind(made, "Deployment")[0]["spec"].update(replicas=4), "undo")

    def test_budgets(self):
        job = of_kind(self.rendered[K8S / "overlays/job"], "Job")
        for share in ({"maxUnavailable": "50%"}, {"maxUnavailable": 1}, {"minAvailable": "50%"}):
            def loosen(made, share=share):
                made.extend(job)
                budget = of_kind(made, "PodDisruptionBudget")[1]["spec"]
                del budget["selector"]["matchLabels"]["workers"], budget["maxUnavailable"]
                budget.update(share)
            self.assert_finds("deployment", loosen, "selects the pods of Job allot-worker")

    def test_shared_volume(self):
        def found(change):
            made = copy.deepcopy(self.rendered[K8S / "runs"] + self.rendered[K8S / "base"])
            change(made[0]["spec"]["affinity"]["podAffinity"])
            return "\n".join(policy.shared_volume_faults(made))

        required = "requiredDuringSchedulingIgnoredDuringExecution"
        self.assertIn("not kept to the node", found(lambda affinity: affinity.update(
            {"preferredDuringSchedulingIgnoredDuringExecution": affinity.pop(required)})))
        self.assertIn("never starts without", found(lambda affinity: affinity[required][0].update(
            labelSelector={"matchLabels": {"app.kubernetes.io/component": "aggregator"}})))
        self.assertIn("does not find StatefulSet", found(lambda affinity: affinity[required][0].update(
            labelSelector={"matchLabels": {"app.kubernetes.io/component": "runs"}})))

    def test_privilege(self):
        for key, value in (("allowPrivilegeEscalation", True), ("readOnlyRootFilesystem", False),
                           ("runAsNonRoot", None), ("capabilities", {"add": ["NET_ADMIN"]})):
            self.assert_finds("job", lambda made, k=key, v=value: self.container(made)["securityContext"].update({k: v}), key)
        self.assert_finds("job", lambda made: self.container(made)["securityContext"].update(privileged=True), "privileged")
        self.assert_finds("job", lambda made: self.pod(made, "worker")["securityContext"].update(runAsUser=0), "root")
        self.assert_finds("job", lambda made: self.pod(made, "worker")["securityContext"].pop("seccompProfile"), "seccomp")
        self.assert_finds("job", lambda made: self.pod(made, "worker").update(hostNetwork=True), "hostNetwork")
        self.assert_finds("job", lambda made: self.container(made, "aggregator")["ports"][0].update(hostPort=1), "of the host")
        (namespace,) = copy.deepcopy(self.rendered[K8S / "namespace"])
        del namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        self.assertIn("does not enforce the restricted", "".join(policy.faults([namespace])))

    def test_tokens(self):
        self.assert_finds("job", lambda made: self.pod(made, "worker").pop("automountServiceAccountToken"), "token")
        self.assert_finds("job", lambda made: of_kind(made, "ServiceAccount")[0].pop("automountServiceAccountToken"), "token")

    def test_volumes(self):
        self.assert_finds("job", lambda made: self.pod(made, "worker")["volumes"].append(
            {"name": "host", "hostPath": {"path": "/"}}), "volume host")
        self.assert_finds("job", lambda made: [mount.update(readOnly=False) for mount in self.container(made)["volumeMounts"]],
                          "keys is mounted writable", "inputs is mounted writable")
        self.assert_finds("job", lambda made: self.container(made)["volumeMounts"].pop(), "no /tmp")
        self.assert_finds("job", lambda made: self.pod(made, "worker")["volumes"][-1].update(emptyDir={}), "no sizeLimit")

    def test_probes(self):
        self.assert_finds("job", lambda made: self.container(made).pop("livenessProbe"), "livenessProbe")
        self.assert_finds("job", lambda made: self.container(made)["args"].append("--device=cuda:1") or
                          self.container(made)["args"].remove("--device=cuda:0"), "not a check of cuda:1")
        self.assert_finds("job", lambda made: self.container(made, "aggregator").pop("readinessProbe"), "readinessProbe")

    def test_labels_and_selectors(self):
        self.assert_finds("job", lambda made: of_kind(made, "Job")[0]["metadata"].pop("labels"), "common labels")
        self.assert_finds("job", lambda made: of_kind(made, "Job")[0]["metadata"].pop("namespace"), "in namespace None")
        self.assert_finds("job", lambda made: of_kind(made, "Service")[0]["spec"]["selector"].update(
            {"app.kubernetes.io/component": "agregator"}), "finds nothing")
        self.assert_finds("deployment", lambda made: of_kind(made, "PodDisruptionBudget")[1]["spec"]["selector"].update(
            matchLabels={"app": "worker"}), "finds nothing")

    def test_network(self):
        def policy_named(objects, name):
            return next(thing["spec"] for thing in of_kind(objects, "NetworkPolicy") if thing["metadata"]["name"] == name)

        self.assert_finds("job", lambda made: policy_named(made, "default-deny")["policyTypes"].pop(), "default-deny")
        self.assert_finds("job", lambda made: policy_named(made, "allot-aggregator")["ingress"][0].pop("from"), "anyone")
        for port in (22, 8080):
            self.assert_finds("job", lambda made, p=port: policy_named(made, "allot-aggregator")["ingress"][0]["ports"].append(
                {"port": p, "protocol": "TCP"}), f"open [{', '.join(map(str, sorted([port, 5557])))}], not [5557]")
        self.assert_finds("prometheus", lambda made: made.remove(next(
            thing for thing in made if thing["metadata"]["name"] == "allot-aggregator-metrics")), "not [5557, 8080]")
        self.assert_finds("job", lambda made: policy_named(made, "allot-worker")["egress"].append(
            {"ports": [{"port": 443, "protocol": "TCP"}]}), "443")
        self.assert_finds("job", lambda made: policy_named(made, "allot-worker")["egress"].pop(), "openshift-dns")
        self.assert_finds("job", lambda made: policy_named(made, "allot-worker")["egress"][1]["to"].pop(), "169.254.169.254")
        self.assert_finds("job", lambda made: policy_named(made, "allot-worker")["egress"][1]["ports"].append(
            {"port": 80, "protocol": "TCP"}), "80")
        self.assert_finds("job", lambda made: policy_named(made, "allot-worker")["egress"][1]["ports"].pop(), "['UDP'] only")
        self.assert_finds("job", lambda made: of_kind(made, "Service")[0]["spec"]["ports"][0].update(port=5558), "port wire",
                          "is not the Service's address")

    def test_references(self):
        self.assert_finds("job", lambda made: made.remove(of_kind(made, "ConfigMap")[0]), "ConfigMap")
        self.assert_finds("job", lambda made: self.pod(made, "worker").update(priorityClassName="urgent"), "urgent")
        self.assert_finds("job", lambda made: self.pod(made, "worker")["volumes"][0]["secret"].update(secretName="keys"),
                          "Secret keys")
        self.assert_finds("job", lambda made: self.pod(made, "worker")["volumes"][1]["persistentVolumeClaim"].update(
            claimName="model"), "claim model")

    def test_spot(self):
        self.assert_finds("job", lambda made: self.pod(made, "aggregator").pop("affinity"), "keeps off")
        self.assert_finds("job", lambda made: self.pod(made, "aggregator")["tolerations"].append(
            {"key": "cloud.google.com/gke-spot", "operator": "Exists"}), "tolerates")
        self.assert_finds("spot", lambda made: self.pod(made, "worker")["nodeSelector"].update(disk="ssd"), "disk")

    def test_job(self):
        def job(objects):
            return of_kind(objects, "Job")[0]["spec"]

        self.assert_finds("job", lambda made: job(made).update(parallelism=5), "as many completions")
        self.assert_finds("job", lambda made: job(made).pop("podReplacementPolicy"), "one worker name")
        self.assert_finds("job", lambda made: job(made).pop("backoffLimitPerIndex"), "one bad node")
        self.assert_finds("job", lambda made: job(made).update(backoffLimit=20), "one bad node")
        self.assert_finds("job", lambda made: job(made)["podFailurePolicy"]["rules"].pop(), "podFailurePolicy")
        self.assert_finds("job", lambda made: self.container(made)["args"].remove("--drained-exit-code=143"), "drained")

    def test_service_monitor(self):
        def endpoint(objects):
            return of_kind(objects, "ServiceMonitor")[0]["spec"]["endpoints"][0]

        self.assert_finds("prometheus", lambda made: endpoint(made).update(port="metrics"), "scrapes")
        self.assert_finds("prometheus", lambda made: endpoint(made).update(intervall="1s"), "endpoint fields")


class OperationsPage(unittest.TestCase):
    """docs/operations.md names things that are there."""

    text = (REPOSITORY / "docs/operations.md").read_text()
    code = [line.strip() for line in re.findall(r"^ {4,}(.*)$", text, re.MULTILINE)] + re.findall(r"`([^`\n]+)`", text)

    blocks = re.findall(r"^ {8}apiVersion: kustomize.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)

    def rendered_beside_k8s(self, *kustomizations):
        """What each of the page's kustomizations makes in a folder of its own beside k8s/."""
        with tempfile.TemporaryDirectory() as directory:
            shutil.copytree(K8S, pathlib.Path(directory) / "k8s")
            made = []
            for number, text in enumerate(kustomizations):
                folder = pathlib.Path(directory) / f"mine-{number}"
                folder.mkdir()
                shutil.copy(K8S / "base/run.conf", folder / "run.conf")
                with (folder / "run.conf").open("a") as config:
                    config.write("pairs-per-update = 8\n")
                (folder / "kustomization.yaml").write_text(textwrap.dedent(text).replace("REGISTRY", "registry.test/team"))
                self.assertEqual(manifests.warnings(folder), "")
                made.append(manifests.render(folder, yaml))
        return made

    def test_its_own_kustomization_renders_and_keeps_the_policy(self):
        run, _ = self.blocks
        (objects,) = self.rendered_beside_k8s(run)
        self.assertEqual(policy.faults(objects), [])
        self.assertIn("pairs-per-update = 8", of_kind(objects, "ConfigMap")[0]["data"]["run.conf"])
        images = {container["image"] for _, _, container in policy.each_container(objects)}
        self.assertEqual(images, {f"registry.test/team/{name}:{policy.VERSION}" for name in ("aggregator", "worker")})

    def test_any_overlay_can_be_scraped(self):
        run, _ = self.blocks
        (words,) = re.findall(r"`(components: \[.*?\])`", self.text)
        for overlay in ("spot", "job", "kueue"):
            (objects,) = self.rendered_beside_k8s(run.replace("overlays/spot", f"overlays/{overlay}") + f"\n        {words}\n")
            self.assertEqual(policy.faults(objects), [])
            self.assertEqual(len(of_kind(objects, "ServiceMonitor")), 1)

    def test_a_second_run_is_in_a_namespace_of_its_own_and_shares_the_priorities_alone(self):
        run, setup = self.blocks
        (line,) = re.findall(r"the line `(namespace: \S+)`", self.text)
        second_run, second_setup = self.rendered_beside_k8s(run + f"\n        {line}\n", setup)
        name = line.removeprefix("namespace: ")
        self.assertEqual(policy.faults(second_run + second_setup, namespace=name), [])
        (namespace,) = of_kind(second_setup, "Namespace")
        self.assertEqual(namespace["metadata"]["name"], name)
        both = {(label(thing), thing["metadata"].get("namespace")) for thing in second_run + second_setup}
        first = {(label(thing), thing["metadata"].get("namespace")) for objects in self.rendered_beside_k8s(run)
                 for thing in objects}
        self.assertEqual(both & first, set())

    def test_the_paths_it_names_exist(self):
        for path in set(re.findall(r"\b((?:k8s|images|tests)/[\w./-]*\w)", self.text)):
            self.assertTrue((REPOSITORY / path).exists(), path)
        for path in re.findall(r"\]\(([\w-]+\.md)", self.text):
            self.assertTrue((REPOSITORY / "docs" / path).exists(), path)

    def test_every_kustomization_is_explained(self):
        for folder in manifests.folders():
            if folder != K8S / "base":
                self.assertIn(str(folder.relative_to(REPOSITORY)), self.text)

    def test_every_alert_has_its_runbook(self):
        alerts = yaml.safe_load((K8S / "monitoring/alerts.yaml").read_text())
        names = [rule["alert"] for group in alerts["groups"] for rule in group["rules"] if "alert" in rule]
        listed = re.findall(r"^\| (\w+) \| \[steps\]\(monitoring.md#(\w+)\)", self.text, re.MULTILINE)
        self.assertEqual(sorted(listed), sorted((name, name.lower()) for name in names))
        headings = re.findall(r"^### (\w+)$", (REPOSITORY / "docs/monitoring.md").read_text(), re.MULTILINE)
        self.assertLessEqual(set(names), set(headings))

    def test_its_command_makes_a_prometheus_rule_of_the_alerts(self):
        (command,) = [line for line in self.code if "PrometheusRule" in line]
        made = subprocess.run(["sh", "-c", command.rpartition(" | kubectl")[0]], cwd=REPOSITORY, capture_output=True,
                              text=True, check=True).stdout
        rule = yaml.safe_load(made)
        self.assertEqual(rule["kind"], "PrometheusRule")
        self.assertEqual(rule["spec"], yaml.safe_load((K8S / "monitoring/alerts.yaml").read_text()))

    def test_the_objects_its_commands_name_are_made(self):
        made = {f"{thing['kind'].lower()}/{thing['metadata']['name']}"
                for folder in manifests.kustomizations() for thing in manifests.render(folder, yaml)}
        made |= {"pod/allot-aggregator-0", "endpoints/allot-aggregator"} | {f"secret/{name}"
                                                                          for name in policy.SECRETS_OF_THE_OPERATOR}
        named = re.findall(r"(statefulset|deployment|pod|job|endpoints|secret generic)[ /](allot-[\w-]+)", "\n".join(self.code))
        self.assertGreater(len(named), 10)
        for kind, name in named:
            self.assertIn(f"{kind.split()[0]}/{name}", made)

    def test_the_options_of_its_allot_commands_are_those_of_the_tool(self):
        commands = [match for line in self.code
                    for match in re.findall(r"(?:^|\$\(|-- /usr/bin/)allot ([^)>]+)", line)]
        self.assertGreater(len(commands), 8)
        for command in commands:
            words = [word.partition("=")[0] for word in command.split()]
            named = words[:2] if words[0] == "bench" else words[:1]
            known = allot(*named, "--help")
            self.assertEqual(known.returncode, 0, f"allot {command}: {known.stderr}")
            for option in (word for word in words if word.startswith("--")):
                self.assertRegex(known.stdout, rf"(?m)^  {option}\b", f"allot {command}")


def allot(*words):
    tool = pathlib.Path(os.environ["ALLOT_BIN_DIR"]) / "allot"
    return subprocess.run([str(tool), *words], capture_output=True, text=True, check=False)


class ExportedSchedules(unittest.TestCase):
    """What `allot export --format k8s` writes."""

    def test_the_config_map_fits_the_schemas_and_kustomize_keeps_its_files_to_the_byte(self):
        schedule = REPOSITORY / "tests/data/schedule/version_1.json"
        done = allot("export", f"--schedule={schedule}", "--format=k8s", "--name=smol-64")
        self.assertEqual(done.returncode, 0, done.stderr)
        with tempfile.TemporaryDirectory() as directory:
            folder = pathlib.Path(directory)
            (folder / "schedule.yaml").write_text(done.stdout)
            (folder / "kustomization.yaml").write_text("resources: [schedule.yaml]\n")
            (thing,) = manifests.render(folder, yaml)
        for version in (OLDEST_KUBERNETES, kubernetes_validate.latest_version()):
            kubernetes_validate.validate(thing, version, strict=True)
        self.assertEqual((thing["kind"], thing["metadata"]["name"]), ("ConfigMap", "smol-64"))
        for key, form in (("schedule.json", "schedule"), ("hf-overrides.json", "hf")):
            self.assertEqual(thing["data"][key], allot("export", f"--schedule={schedule}", f"--format={form}").stdout)


class StartTheToolsAsTheyAre(Rendered):
    """The tools take the arguments that the containers give them."""

    def dry_run(self, words):
        done = allot(*words, "--dry-run")
        self.assertEqual(done.returncode, 0, f"allot {' '.join(words)}: {done.stderr}")
        return done.stdout

    def test_aggregator_takes_its_arguments_and_every_line_of_the_config(self):
        for folder, objects in self.each():
            for _, pod in component(objects, "aggregator"):
                (config,) = of_kind(objects, "ConfigMap")
                with tempfile.TemporaryDirectory() as directory:
                    file = pathlib.Path(directory) / "run.conf"
                    file.write_text(config["data"]["run.conf"])
                    arguments = pod["containers"][0]["args"]
                    self.assertIn(CONFIG_OPTION, arguments, folder)
                    resolved = self.dry_run([f"--config={file}" if word == CONFIG_OPTION else word for word in arguments])
                for line in re.findall(r"^[a-z].*$", config["data"]["run.conf"], re.MULTILINE):
                    self.assertIn(line, resolved)

    def test_aggregator_reads_and_writes_where_volumes_are_mounted(self):
        for _, objects in self.each():
            for _, pod in component(objects, "aggregator"):
                mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
                config = of_kind(objects, "ConfigMap")[0]["data"]["run.conf"]
                for name, volume in (("run", "runs"), ("model", "inputs"), ("data", "inputs"), ("heldout", "inputs")):
                    (place,) = re.findall(rf"^{name} = (.*)$", config, re.MULTILINE)
                    self.assertTrue(place.startswith(mounts[volume] + "/"), f"{name} = {place}")

    def test_worker_takes_its_arguments(self):
        for _, objects in self.each():
            for _, pod in component(objects, "worker"):
                self.dry_run(pod["containers"][0]["args"])

    def test_worker_probes_take_their_arguments(self):
        for _, objects in self.each():
            for _, pod in component(objects, "worker"):
                self.dry_run(pod["containers"][0]["livenessProbe"]["exec"]["command"][1:])

    def test_an_unknown_argument_is_found(self):
        with self.assertRaisesRegex(AssertionError, "--bindd"):
            self.dry_run(["aggregator", "--bindd=tcp://0.0.0.0:5557"])


def main():
    global yaml, kubernetes_validate
    try:
        yaml, kubernetes_validate = manifests.import_yaml_and_schemas()
        manifests.check_kubectl()
        Rendered.rendered = {folder: manifests.render(folder, yaml) for folder in manifests.kustomizations()}
    except manifests.Skipped as why:
        print(f"skipped: {why}")
        return 77
    result = unittest.main(exit=False, verbosity=2).result
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
