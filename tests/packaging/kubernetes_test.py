#!/usr/bin/env python3
"""usage: kubernetes_test.py RENDERED.yaml OUTRIDER [CLAIM...]     claims that are there already

What a schema does not see of rendered manifests: arguments that the program does not have, pods whose CPUs are not theirs
alone, names that nothing has.
"""
import re
import subprocess
import sys

import yaml

rendered, outrider, *claims_there = sys.argv[1:]
with open(rendered, encoding="utf-8") as file:
    objects = [item for item in yaml.safe_load_all(file) if item]
problems = []
NOBODY = {"matchLabels": {"nobody": ""}}


def expect(holds, problem):
    if not holds:
        problems.append(problem)


def named(kind):
    return {item["metadata"]["name"] for item in objects if item.get("kind") == kind}


def options_of(command):
    text = subprocess.run([outrider, command, "--help"], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"--[a-z][a-z-]*", text))


def check_pod(owner, template, claims):
    pod = template["spec"]
    labels = template["metadata"]["labels"]
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    for volume in volumes.values():
        if "secret" in volume:
            expect(volume["secret"]["defaultMode"] == 0o400, f"{owner}: {volume['name']} can be read by others")
        if "persistentVolumeClaim" in volume:
            expect(volume["persistentVolumeClaim"]["claimName"] in named("PersistentVolumeClaim") | set(claims_there),
                   f"{owner}: no claim {volume['persistentVolumeClaim']['claimName']}")
    for container in pod.get("initContainers", []) + pod["containers"]:
        where = f"{owner}, container {container['name']}"
        variables = {variable["name"]: variable for variable in container.get("env", [])}
        check_security(where, container)
        if "args" not in container:  # a plan's command that is none of ours
            continue
        command, *arguments = container["args"]
        known = options_of(command)
        for argument in arguments:
            option = argument.partition("=")[0]
            expect(not option.startswith("--") or option in known, f"{where}: `outrider {command}` has no {option}")
        for name in re.findall(r"\$\((\w+)\)", " ".join(arguments)):
            expect(name in variables or name.startswith("LWS_"), f"{where}: $({name}) is not set")
        for variable in variables.values():
            source = variable.get("valueFrom", {})
            if "configMapKeyRef" in source:
                reference = source["configMapKeyRef"]
                data = [item["data"] for item in objects
                        if item.get("kind") == "ConfigMap" and item["metadata"]["name"] == reference["name"]]
                expect(data and reference["key"] in data[0], f"{where}: no {reference['key']} in {reference['name']}")
        if command == "serve":
            drain = [int(argument.partition("=")[2]) for argument in arguments if argument.startswith("--drain-wait=")]
            leaves_first = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
            expect(drain and drain[0] + leaves_first < pod["terminationGracePeriodSeconds"], f"{where}: answers under way are cut")
            [port] = [argument.partition("=")[2] for argument in arguments if argument.startswith("--port=")]
            asked = container["startupProbe"].get("exec", {}).get("command", [""])[-1]
            expect("GET /ready " in asked and f"/{port}\n" in asked, f"{where}: gets requests before the coordinator has answered it")
        if command in ("serve", "verifier"):
            expect(any(selects(item["spec"]["selector"], labels) for item in objects if item.get("kind") == "PodDisruptionBudget"),
                   f"{where}: drained nodes take all of them at once")
        if command == "shard":
            expect(pod.get("terminationGracePeriodSeconds", 30) >= 120, f"{where}: ends before its draining verifier")
        if command in ("coordinator", "serve"):
            expect(sum(taint.get("tolerationSeconds", 0) < 60 for taint in pod.get("tolerations", []) if taint["effect"] == "NoExecute") == 2,
                   f"{where}: stays for minutes on a node that is lost")
        if command in ("verifier", "drafter"):
            probe = container.get("readinessProbe", {}).get("exec", {}).get("command", [])
            expect(f"--ready-file={probe[-1] if probe else None}" in arguments,
                   f"{where}: is ready before the coordinator has it in its books")
        resources = container["resources"]
        expect(resources["requests"] == resources["limits"], f"{where}: requests differ from limits")
        expect(re.fullmatch(r"[1-9]\d*", str(resources["limits"]["cpu"])), f"{where}: CPUs are not whole")
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        expect(mounted <= set(volumes) | claims, f"{where}: mounts {mounted - set(volumes) - claims}, which are not there")
        paths = [path for argument in arguments for path in re.findall(r"=(/\w+)/", argument)]
        for path in paths:
            expect(path in {mount["mountPath"] for mount in container["volumeMounts"]}, f"{where}: nothing is at {path}")
        words = [argument for argument in arguments if re.search(r"^--(join|connect)=|^tcp://outrider", argument)]
        dials = [argument for argument in words if "tcp://" in argument and command != "shard"]
        for argument in dials:
            host, port = re.search(r"tcp://([\w-]+):(\d+)$", argument).groups()
            services = [item["spec"] for item in objects if item.get("kind") == "Service" and item["metadata"]["name"] == host]
            expect(services and int(port) in {entry["port"] for entry in services[0]["ports"]}, f"{where}: no service {host}:{port}")
            expect(services and lets_in(services[0]["selector"], labels), f"{where}: the network policy does not let it dial")
        expect(bool(dials) == (command not in ("coordinator", "shard")), f"{where}: {arguments} dials nobody, or should not")
        if command == "shard" and "$(LWS_LEADER_ADDRESS)" not in words[0]:
            check_shard(where, labels, words[0])


def selects(selector, labels):
    return (all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and
            all(labels.get(one["key"]) in one["values"] for one in selector.get("matchExpressions", [])))


def lets_in(listener, caller, port="outrider"):
    """Do the network policies let pods with one set of labels reach a port of pods with the other?"""
    rules = [rule for item in objects if item.get("kind") == "NetworkPolicy" and selects(item["spec"]["podSelector"], listener)
             for rule in item["spec"].get("ingress", [])]
    return any(selects(rule["from"][0].get("podSelector", NOBODY), caller) and rule["ports"] == [{"port": port}] for rule in rules)


def check_shard(where, labels, join):
    """It reaches its verifier before that is ready."""
    name, number, service, port = re.fullmatch(r"--join=tcp://([\w-]+)-(\d+)\.([\w-]+):(\d+)", join).groups()
    [verifier] = [item["spec"] for item in objects if item.get("kind") == "StatefulSet" and item["metadata"]["name"] == name]
    expect(verifier["serviceName"] == service and int(number) < verifier["replicas"], f"{where}: no pod for {join}")
    [of_pods] = [item["spec"] for item in objects if item.get("kind") == "Service" and item["metadata"]["name"] == service]
    expect(of_pods["clusterIP"] == "None" and of_pods.get("publishNotReadyAddresses"), f"{where}: {service} has no name for a pod that waits")
    expect(f"--listen-shards=tcp://0.0.0.0:{port}" in verifier["template"]["spec"]["containers"][0]["args"], f"{where}: nothing listens at {port}")
    expect(lets_in(verifier["template"]["metadata"]["labels"], labels, int(port)), f"{where}: the network policy does not let it dial")


def check_inference_pool(pool):
    ports = {entry["containerPort"] for item in objects if item.get("kind") == "Deployment" and selects(pool["selector"], item["spec"]["template"]["metadata"]["labels"])
             for container in item["spec"]["template"]["spec"]["containers"] if "--metrics-prefix=vllm" in container["args"]
             for entry in container["ports"]}
    expect(ports >= {port["number"] for port in pool["targetPorts"]} and ports, "InferencePool: no pods with vLLM's metrics at its port")
    expect(pool["endpointPickerRef"]["name"] and pool["endpointPickerRef"]["port"]["number"], "InferencePool: no endpoint picker")


def check_security(where, container):
    security = container["securityContext"]
    expect(security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"] and security["capabilities"] == {"drop": ["ALL"]},
           f"{where}: may do more than it must")


pods = 0
for item in objects:
    if item.get("kind") in ("Deployment", "StatefulSet", "Job"):
        pods += item["kind"] != "Job" and item["metadata"]["labels"]["app.kubernetes.io/component"] != "shard"
        claims = {claim["metadata"]["name"] for claim in item["spec"].get("volumeClaimTemplates", [])}
        check_pod(f"{item['kind']} {item['metadata']['name']}", item["spec"]["template"], claims)
    elif item.get("kind") == "LeaderWorkerSet":
        group = item["spec"]["leaderWorkerTemplate"]
        claims = {claim["metadata"]["name"] for claim in group["volumeClaimTemplates"]}
        labels = []
        for index, role in enumerate(("leaderTemplate", "workerTemplate")):
            check_pod(f"LeaderWorkerSet {item['metadata']['name']}, {role}", group[role], claims)
            # What the controller adds.
            labels.append(group[role]["metadata"]["labels"] | {"leaderworkerset.sigs.k8s.io/name": item["metadata"]["name"],
                                                               "leaderworkerset.sigs.k8s.io/worker-index": str(index)})
        expect(lets_in(*labels, 7071), f"LeaderWorkerSet {item['metadata']['name']}: the network policy does not let a shard dial its verifier")
    elif item.get("kind") == "DisaggregatedSet":
        roles = {role["name"]: role for role in item["spec"]["roles"]}
        pods += len(roles)
        for name, role in roles.items():
            group = role["spec"]["leaderWorkerTemplate"]
            check_pod(f"DisaggregatedSet, {name}", group["workerTemplate"], set())
            expect(group.get("restartPolicy") == "None", f"DisaggregatedSet, {name}: a pod that restarts is made anew at once, for ever")
        scaled = {f"{item['metadata']['name']}-{name}" for name, role in roles.items() if "replicas" not in role["spec"]}
        targets = {other["spec"]["scaleTargetRef"]["name"] for other in objects if other["kind"] == "HorizontalPodAutoscaler"}
        expect(scaled == targets, f"DisaggregatedSet: {scaled} have no number of replicas, and autoscalers are for {targets}")
    elif item.get("kind") == "InferencePool":
        check_inference_pool(item["spec"])
    elif "rules" in item:  # values of the prometheus-adapter
        metrics = {metric["external"]["metric"]["name"] for other in objects if other.get("kind") == "HorizontalPodAutoscaler"
                   for metric in other["spec"]["metrics"] if metric["type"] == "External"}
        expect({rule["name"]["as"] for rule in item["rules"]["external"]} == metrics, f"the autoscaler wants {metrics}, which the adapter does not make")
expect(pods == 4, f"{pods} workloads, wanted 4")
for problem in problems:
    print(f"{rendered}: {problem}", file=sys.stderr)
sys.exit(1 if problems else 0)
