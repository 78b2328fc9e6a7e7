"""What every manifest of allot keeps to, as functions from the objects of one kustomization to the faults in them."""

import re

from manifests import REPOSITORY, argument, component, containers, label, matches, mebibytes, of_kind, pod_templates

NAMESPACE = "allot"
CLUSTER_SCOPED = {"Namespace", "PriorityClass"}
PRIORITIES_MADE_ELSEWHERE = {"allot-aggregator", "allot-worker"}  # by k8s/priorities, once for a cluster
# Cluster Autoscaler's --expendable-pods-priority-cutoff and OpenShift's podPriorityThreshold: for a pod of a lower priority
# no node is added.
AUTOSCALER_CUTOFF = -10
# MiB of log that a node may hold of one container: a kubelet keeps 5 files of 10 MiB, and a flood of 8 MiB a second goes on
# for 10 s before it looks.
LOG_MIB = 5 * 10 + 10 * 8
LEAST_EPHEMERAL_MIB = 512  # three times that and /tmp: kubelets may be told to keep more
# Made by the operator (docs/operations.md), so no kustomization holds them.
SECRETS_OF_THE_OPERATOR = {"allot-aggregator-keys", "allot-worker-keys"}
CLAIMS_MADE_ELSEWHERE = {"allot-inputs", "runs-allot-aggregator-0"}  # by k8s/inputs and by the StatefulSet
SPOT_LABELS = {"cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible", "eks.amazonaws.com/capacityType",
               "karpenter.sh/capacity-type", "kubernetes.azure.com/scalesetpriority"}
VERSION = re.search(r"project\(allot VERSION (\S+)", (REPOSITORY / "CMakeLists.txt").read_text())[1]


def each_container(objects):
    for thing, _, pod in pod_templates(objects):
        for container in containers(pod):
            yield f"{label(thing)}, container {container['name']}", thing, container


def image_faults(objects):
    """Images by version tag, allot's own by the version of this source, those of others by digest too."""
    for where, _, container in each_container(objects):
        image, _, digest = container["image"].partition("@")
        name, _, tag = image.rpartition("/")[2].partition(":")
        if name not in {"aggregator", "worker"} and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            yield f"{where}: image {image} of others has no digest"
        if not re.fullmatch(r"\d+\.\d+\.\d+", tag):
            yield f"{where}: image {image} has no version tag (N.N.N)"
        elif name in {"aggregator", "worker"} and tag != VERSION:
            yield f"{where}: image {image} is not of version {VERSION}, which CMakeLists.txt names"


def resource_faults(objects):
    for where, _, container in each_container(objects):
        for kind in ("requests", "limits"):
            for resource in ("cpu", "memory", "ephemeral-storage"):
                if resource not in container.get("resources", {}).get(kind, {}):
                    yield f"{where}: no {resource} among its {kind}"
    for thing, _, pod in pod_templates(objects):
        if component([thing], "inputs") or component([thing], "runs"):
            continue  # sleeps and writes no log
        tmp = sum(mebibytes(volume["emptyDir"].get("sizeLimit", "0Mi")) for volume in pod["volumes"] if "emptyDir" in volume)
        least = max(LEAST_EPHEMERAL_MIB, LOG_MIB + tmp)
        for container in containers(pod):
            limit = container.get("resources", {}).get("limits", {}).get("ephemeral-storage", "0Mi")
            if mebibytes(limit) < least:
                yield f"{label(thing)}: {limit} of ephemeral-storage are too little for its log and /tmp; {least}Mi are needed"
    for _, pod in component(objects, "worker"):
        if pod["containers"][0]["resources"]["limits"].get("nvidia.com/gpu") != "1":
            yield "worker: limit nvidia.com/gpu is not 1"
    for _, pod in component(objects, "aggregator"):
        for kind in ("requests", "limits"):
            resources = pod["containers"][0]["resources"][kind]
            if (resources["cpu"], resources["memory"]) != ("1", "256Mi"):
                yield f"aggregator: {kind} {resources} are not 1 CPU and 256Mi"


def privilege_faults(objects):
    """The restricted Pod Security Standard, and a read-only root file system."""
    for thing, _, pod in pod_templates(objects):
        context = pod.get("securityContext", {})
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.get(key):
                yield f"{label(thing)}: {key}"
        if context.get("runAsNonRoot") is not True or context.get("runAsUser", 0) == 0:
            yield f"{label(thing)}: may run as root"
        if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{label(thing)}: seccomp profile is not RuntimeDefault"
    for where, _, container in each_container(objects):
        context = container.get("securityContext", {})
        wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "runAsNonRoot": True}
        for key, value in wanted.items():
            if context.get(key) is not value:
                yield f"{where}: {key} is {context.get(key)}, not {value}"
        if context.get("privileged") or context.get("runAsUser") == 0:
            yield f"{where}: privileged or root"
        if context.get("capabilities") != {"drop": ["ALL"]}:
            yield f"{where}: capabilities are {context.get('capabilities')}, not drop ALL"
        if any("hostPort" in port for port in container.get("ports", [])):
            yield f"{where}: takes a port of the host"
    for namespace in of_kind(objects, "Namespace"):
        if namespace["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") != "restricted":
            yield f"{label(namespace)}: does not enforce the restricted Pod Security Standard"


def token_faults(objects):
    for thing, _, pod in pod_templates(objects):
        if pod.get("automountServiceAccountToken") is not False:
            yield f"{label(thing)}: mounts a service account token"
    for account in of_kind(objects, "ServiceAccount"):
        if account.get("automountServiceAccountToken") is not False:
            yield f"{label(account)}: its token is mounted by default"


def volume_faults(objects):
    for thing, _, pod in pod_templates(objects):
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for volume in volumes.values():
            if not volume.keys() & {"configMap", "secret", "persistentVolumeClaim", "emptyDir"}:
                yield f"{label(thing)}: volume {volume['name']} is of no kind that is used here"
            if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
                yield f"{label(thing)}: emptyDir {volume['name']} has no sizeLimit"
        if component([thing], "inputs") or component([thing], "runs"):
            continue  # pods to copy files with: they write what others only read
        for container in containers(pod):
            mounts = {mount["name"]: mount for mount in container.get("volumeMounts", [])}
            for name in ("keys", "inputs", "config"):
                if name in mounts and mounts[name].get("readOnly") is not True:
                    yield f"{label(thing)}: {name} is mounted writable"
            if mounts.get("tmp", {}).get("mountPath") != "/tmp":
                yield f"{label(thing)}: no /tmp beside the read-only root file system"


def probe_faults(objects):
    for _, pod in component(objects, "aggregator"):
        container = pod["containers"][0]
        for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            found = container.get(probe, {}).get("httpGet")
            if found != {"path": path, "port": "http"}:
                yield f"aggregator: {probe} asks {found}, not {path} on port http"
    for thing, pod in component(objects, "worker"):
        container = pod["containers"][0]
        device = argument(container, "device")
        for probe in ("startupProbe", "livenessProbe"):
            command = container.get(probe, {}).get("exec", {}).get("command")
            if command != ["/usr/bin/allot", "devices", "--check", device]:
                yield f"{label(thing)}: {probe} runs {command}, not a check of {device}"


def priority_faults(objects):
    """Classes are of the cluster, so no run holds them; workers give way to all and still make an autoscaler add nodes."""
    classes = {thing["metadata"]["name"]: thing for thing in of_kind(objects, "PriorityClass")}
    if classes and pod_templates(objects):
        yield f"PriorityClasses {sorted(classes)} are deleted with one run, for the runs of all namespaces"
    for name, made in classes.items():
        if made["value"] < AUTOSCALER_CUTOFF:
            yield f"{label(made)}: value {made['value']}, and below {AUTOSCALER_CUTOFF} no autoscaler adds a node for it"
        if made.get("globalDefault"):
            yield f"{label(made)}: taken by pods that are not allot's"
        if name not in PRIORITIES_MADE_ELSEWHERE:
            yield f"{label(made)}: not one of {sorted(PRIORITIES_MADE_ELSEWHERE)}"
    if "allot-worker" in classes:
        worker = classes["allot-worker"]
        if worker["value"] >= 0 or worker.get("preemptionPolicy") != "Never":
            yield f"{label(worker)}: drives others out"


def scale_faults(objects):
    """What is scaled by hand or by an autoscaler is not set back by the next `kubectl apply`."""
    for thing in of_kind(objects, "Deployment"):
        if "replicas" in thing["spec"]:
            yield f"{label(thing)}: replicas {thing['spec']['replicas']} undo `kubectl scale` at every apply"


def budget_faults(objects):
    """A budget in per cent, or with maxUnavailable, needs the scale of everything it selects, which a Job does not have."""
    for budget in of_kind(objects, "PodDisruptionBudget"):
        spec = budget["spec"]
        if "maxUnavailable" not in spec and not str(spec.get("minAvailable", "")).endswith("%"):
            continue
        for thing, labels, _ in pod_templates(objects):
            if matches(spec["selector"], labels) and thing["kind"] not in {"Deployment", "StatefulSet"}:
                yield f"{label(budget)}: selects the pods of {label(thing)}, whose size cannot be asked for, so nothing is evicted"


def shared_volume_faults(objects):
    """A pod that takes the aggregator's volume beside it has to go to its node; with no aggregator it goes anywhere."""
    for thing, labels, pod in pod_templates(objects):
        claims = {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod.get("volumes", [])}
        if "runs-allot-aggregator-0" not in claims:
            continue
        terms = pod.get("affinity", {}).get("podAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", [])
        selectors = [term["labelSelector"] for term in terms if term["topologyKey"] == "kubernetes.io/hostname"]
        if not selectors or not all(matches(selector, labels) for selector in selectors):
            yield f"{label(thing)}: is not kept to the node of the volume, or never starts without an aggregator"
        for other, other_labels, _ in pod_templates(objects):
            if component([other], "aggregator") and not all(matches(selector, other_labels) for selector in selectors):
                yield f"{label(thing)}: its affinity does not find {label(other)}"


def label_faults(objects, namespace=NAMESPACE):
    """Common labels; and every selector finds the pods it is meant for."""
    for thing in objects:
        if thing["kind"] == "ConfigMap":
            continue  # generated
        labels = thing["metadata"].get("labels", {})
        if labels.get("app.kubernetes.io/name") != "allot" or labels.get("app.kubernetes.io/part-of") != "allot":
            yield f"{label(thing)}: lacks the common labels"
        found_in = thing["metadata"].get("namespace")
        if found_in != (None if thing["kind"] in CLUSTER_SCOPED else namespace):
            yield f"{label(thing)}: is in namespace {found_in}, not {namespace}"
        if thing["kind"] == "ConfigMap" or "selector" not in thing.get("spec", {}):
            continue
        selector = thing["spec"]["selector"]
        selector = selector if "matchLabels" in selector else {"matchLabels": selector}
        if thing["kind"] == "ServiceMonitor":
            found = [service for service in of_kind(objects, "Service")
                     if matches(selector, service["metadata"]["labels"])]
        else:
            wanted = labels.get("app.kubernetes.io/component")
            found = [pod for _, pod_labels, pod in pod_templates(objects)
                     if matches(selector, pod_labels) and pod_labels["app.kubernetes.io/component"] == wanted]
        if not found:
            yield f"{label(thing)}: its selector {selector} finds nothing of its component"


def port_numbers(rules):
    return {port["port"] for rule in rules for port in rule["ports"]}


def network_faults(objects):
    """Default-deny, and what is opened: port wire to workers, port http to Prometheus where something scrapes, both as the
    Service and the arguments name them; for workers the aggregator and DNS."""
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind(objects, "NetworkPolicy")}
    services = of_kind(objects, "Service")
    if not component(objects, "aggregator"):
        return
    deny = policies.get("default-deny")
    if deny != {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}:
        yield f"default-deny is {deny}"
    (service,) = services
    ports = {port["name"]: port for port in service["spec"]["ports"]}
    container = component(objects, "aggregator")[0][1]["containers"][0]
    declared = {port["name"]: port["containerPort"] for port in container["ports"]}
    for name, option in (("wire", "bind"), ("http", "http")):
        number = int((argument(container, option) or ":0").rpartition(":")[2])
        if not number == ports[name]["port"] == declared.get(ports[name]["targetPort"]):
            yield f"port {name}: --{option} has {number}, the Service {ports[name]}, the container {declared}"
    to_aggregator = [spec for name, spec in policies.items() if name.startswith("allot-aggregator")]
    opened = port_numbers(rule for spec in to_aggregator for rule in spec["ingress"])
    wanted = {ports["wire"]["port"]} | ({ports["http"]["port"]} if of_kind(objects, "ServiceMonitor") else set())
    if opened != wanted or any("egress" in spec for spec in to_aggregator):
        yield f"the aggregator's policies open {sorted(opened)}, not {sorted(wanted)}"
    if any(not rule.get("from") for spec in to_aggregator for rule in spec["ingress"]):
        yield "the aggregator's policies let anyone in"
    yield from egress_faults(policies["allot-worker"], ports["wire"]["port"])
    for thing, pod in component(objects, "worker"):
        connect = argument(pod["containers"][0], "connect")
        if connect != f"tcp://{service['metadata']['name']}:{ports['wire']['port']}":
            yield f"{label(thing)}: --connect={connect} is not the Service's address"


# Where names are resolved, and the port there: kubeadm, EKS, AKS and GKE; NodeLocal DNSCache as a pod and on its node; Cloud
# DNS for GKE; OpenShift.
RESOLVERS = {("kube-system", "k8s-app=kube-dns", 53), ("kube-system", "k8s-app=node-local-dns", 53),
             ("169.254.20.10/32", "", 53), ("169.254.169.254/32", "", 53),
             ("openshift-dns", "dns.operator.openshift.io/daemonset-dns=default", 5353)}


def egress_faults(worker, wire):
    """Workers reach the aggregator and the resolvers, and nothing else."""
    if "ingress" in worker:
        yield "allot-worker lets someone in"
    resolvers = set()
    for rule in worker["egress"]:
        numbers = {port["port"] for port in rule["ports"]}
        if not rule.get("to") or numbers - {wire, 53, 5353}:
            yield f"allot-worker lets out to {rule.get('to', 'anywhere')} at {sorted(numbers)}"
        if not numbers & {53, 5353}:
            continue
        for number in numbers:
            protocols = {port["protocol"] for port in rule["ports"] if port["port"] == number}
            if protocols != {"UDP", "TCP"}:
                yield f"allot-worker asks port {number} by {sorted(protocols)} only"
        for peer in rule.get("to", []):
            pods = peer.get("podSelector", {})
            names = {f"{key}={value}" for key, value in pods.get("matchLabels", {}).items()}
            names |= {f"{found['key']}={value}" for found in pods.get("matchExpressions", []) for value in found["values"]}
            place = peer.get("ipBlock", {}).get("cidr") or peer["namespaceSelector"]["matchLabels"][
                "kubernetes.io/metadata.name"]
            resolvers |= {(place, name, number) for name in names or {""} for number in numbers}
    if resolvers != RESOLVERS:
        yield f"allot-worker resolves names at {sorted(resolvers)}, not at {sorted(RESOLVERS)}"


def reference_faults(objects):
    names = {kind: {thing["metadata"]["name"] for thing in of_kind(objects, kind)}
             for kind in ("ConfigMap", "ServiceAccount")}
    names["PriorityClass"] = PRIORITIES_MADE_ELSEWHERE
    for thing, _, pod in pod_templates(objects):
        for key, kind in (("serviceAccountName", "ServiceAccount"), ("priorityClassName", "PriorityClass")):
            if key in pod and pod[key] not in names[kind]:
                yield f"{label(thing)}: {kind} {pod[key]} does not exist"
        made = {claim["metadata"]["name"] for claim in thing["spec"].get("volumeClaimTemplates", [])}
        known = {volume["name"] for volume in pod.get("volumes", [])} | made
        for container in containers(pod):
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in known:
                    yield f"{label(thing)}: mounts volume {mount['name']}, which does not exist"
        for volume in pod.get("volumes", []):
            if "configMap" in volume and volume["configMap"]["name"] not in names["ConfigMap"]:
                yield f"{label(thing)}: ConfigMap {volume['configMap']['name']} does not exist"
            if "secret" in volume and volume["secret"]["secretName"] not in SECRETS_OF_THE_OPERATOR:
                yield f"{label(thing)}: Secret {volume['secret']['secretName']} is not one docs/operations.md makes"
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                if claim not in CLAIMS_MADE_ELSEWHERE:
                    yield f"{label(thing)}: claim {claim} is not one of {sorted(CLAIMS_MADE_ELSEWHERE)}"


def spot_faults(objects):
    """The aggregator keeps off nodes that can be reclaimed; a worker's nodeSelector names only such labels."""
    for _, pod in component(objects, "aggregator"):
        terms = (pod.get("affinity", {}).get("nodeAffinity", {})
                 .get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [{}]))
        for term in terms:  # terms are alternatives: each one has to keep off
            kept_off = {rule["key"] for rule in term.get("matchExpressions", []) if rule["operator"] == "NotIn"}
            if kept_off != SPOT_LABELS:
                yield f"aggregator: keeps off {sorted(kept_off)}, not off {sorted(SPOT_LABELS)}"
        for toleration in pod.get("tolerations", []):
            if not toleration.get("key", "").startswith("node.kubernetes.io/"):
                yield f"aggregator: tolerates {toleration}"
    for thing, pod in component(objects, "worker"):
        for key in pod.get("nodeSelector", {}):
            if key not in SPOT_LABELS:
                yield f"{label(thing)}: selects nodes by {key}, which the aggregator does not keep off"


def job_faults(objects):
    for job in of_kind(objects, "Job"):
        spec, pod = job["spec"], job["spec"]["template"]["spec"]
        if (spec.get("completionMode"), spec["completions"], pod["restartPolicy"]) != (
                "Indexed", spec["parallelism"], "Never"):
            yield f"{label(job)}: not Indexed with as many completions as parallelism and restartPolicy Never"
        if "backoffLimit" in spec or spec.get("backoffLimitPerIndex", 0) < 1:
            yield f"{label(job)}: one bad node uses up the retries of all (backoffLimit {spec.get('backoffLimit', 'default')})"
        if spec.get("podReplacementPolicy") != "Failed":
            yield f"{label(job)}: two pods may have one worker name"
        actions = {}
        for rule in spec.get("podFailurePolicy", {}).get("rules", []):
            for code in rule.get("onExitCodes", {}).get("values", []):
                actions[code] = rule["action"]
            for condition in rule.get("onPodConditions", []):
                actions[condition["type"]] = rule["action"]
        drained = int(argument(pod["containers"][0], "drained-exit-code") or 0)
        if actions != {2: "FailJob", 3: "FailJob", drained: "Ignore", "DisruptionTarget": "Ignore"} or drained < 4:
            yield f"{label(job)}: its podFailurePolicy does {actions}, with drained workers at {drained}"
        if "--exit-when-finished" not in pod["containers"][0]["args"]:
            yield f"{label(job)}: its workers outlive the run"


def service_monitor_faults(objects):
    """The Prometheus Operator's schema is not among Kubernetes'; what is used of it is checked here."""
    services = of_kind(objects, "Service")
    for monitor in of_kind(objects, "ServiceMonitor"):
        if monitor["apiVersion"] != "monitoring.coreos.com/v1":
            yield f"{label(monitor)}: apiVersion {monitor['apiVersion']}"
        if set(monitor["spec"]) != {"selector", "endpoints"}:
            yield f"{label(monitor)}: fields {sorted(monitor['spec'])}"
        names = {port["name"] for service in services for port in service["spec"]["ports"]}
        for endpoint in monitor["spec"]["endpoints"]:
            if set(endpoint) - {"port", "path", "interval", "scrapeTimeout"}:
                yield f"{label(monitor)}: endpoint fields {sorted(endpoint)}"
            if endpoint.get("port") not in names or endpoint.get("path") != "/metrics":
                yield f"{label(monitor)}: scrapes {endpoint}; the Service has ports {sorted(names)}"


CHECKS = (image_faults, resource_faults, privilege_faults, token_faults, volume_faults, probe_faults, priority_faults,
          scale_faults, budget_faults, shared_volume_faults, network_faults, reference_faults, spot_faults, job_faults,
          service_monitor_faults)


def faults(objects, namespace=NAMESPACE):
    return [fault for check in CHECKS for fault in check(objects)] + list(label_faults(objects, namespace))
