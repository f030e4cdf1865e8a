"""The catalogue of bad inputs: each ends with one line that names the problem and exit code 2, and writes nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import robustcaps as rc
from robustcaps.cli.app import main
from robustcaps.utils.files import json_checksum

DATA, MODEL, ATTACK = (
    '[[data]]\nuse = "dots"\nlimit = 6\n',
    '[[models]]\nuse = "levels"\n',
    '[[attacks]]\nuse = "fgsm"\n',
)
EPS = "eps = [0.1]\n"
GOOD = DATA + MODEL + ATTACK + EPS
BIG, HUGE, DEEP = "9" * 400, "9" * 5000, "[" * 5000 + "]" * 5000
CELLS = "levels / dots / fgsm"


class Case(NamedTuple):
    """Words of the command line, files of the folder, and what the line must say."""

    words: list[str]
    message: str
    files: dict[str, str | bytes] = {}  # noqa: RUF012  never changed


def suite(text: str | bytes, message: str, plugin: str = "") -> Case:
    """A suite with a mistake."""
    words = ["run", "x.toml", "--plugin", "tiny_plugin.py", "--out", "o"]
    files: dict[str, str | bytes] = {"x.toml": text}
    if plugin:
        words += ["--plugin", "mine.py"]
        files["mine.py"] = "import os\nimport sys\nimport robustcaps as rc\n" + plugin
    return Case(words, message, files)


def attack(text: str, message: str) -> Case:
    """An attack with a mistake."""
    return suite(GOOD + text + "\n", message)


def top(text: str, message: str) -> Case:
    """A mistake above all tables."""
    return suite(text + "\n" + GOOD, message)


def model(text: str, message: str) -> Case:
    return suite(GOOD.replace('use = "levels"', f'use = "levels"\n{text}'), message)


def data(text: str, message: str) -> Case:
    return suite(GOOD.replace("limit = 6", text), message)


def diagnostic(text: str, message: str) -> Case:
    return suite(DATA + MODEL + f"[[diagnostics]]\n{text}\n", message)


def eps(value: str, message: str) -> Case:
    return suite(GOOD.replace("[0.1]", value), message)


SUITES = {
    "empty file": suite("", "x.toml: data: field required"),
    "only a comment": suite("# nothing\n", "x.toml: data: field required"),
    "not TOML": suite("[[data]\n", "x.toml: not valid TOML"),
    "no UTF-8": suite(b"\xff\xfe\x00", "x.toml: cannot be read"),
    "NUL bytes": suite(b"\0" * 100, "x.toml: not valid TOML"),
    "binary": suite(bytes(range(256)), "x.toml: cannot be read"),
    "a control character": suite('title = "a\x01b"\n', "x.toml: not valid TOML"),
    "a duplicate key": top("seeds = [0]\nseeds = [1]", "x.toml: not valid TOML"),
    "a key with a dot": top("a.b = 1", "unknown key 'a'"),
    "unknown key": top("sedes = [0]", "unknown key 'sedes'. Did you mean 'seeds'?"),
    "unknown table": suite(GOOD + "[[atacks]]\n", "unknown key 'atacks'. Did you mean 'attacks'?"),
    "no data": suite(MODEL + ATTACK + EPS, "data: field required"),
    "no models": suite(DATA + ATTACK + EPS, "models: field required"),
    "no attacks": suite(DATA + MODEL, "a suite needs attacks or diagnostics"),
    "models a word": suite('models = "cnn"\n' + DATA + ATTACK + EPS, "models: input should be a valid list"),
    "models of numbers": suite("models = [1]\n" + DATA + ATTACK + EPS, "models[0]: input should be"),
    "no use": suite(GOOD.replace('use = "levels"', 'name = "x"'), "models[0].use: field required"),
    "empty use": suite(GOOD.replace('"levels"', '""'), "models[0].use: string should have at least 1 character"),
    "use a number": suite(GOOD.replace('"levels"', "3"), "models[0].use: input should be a valid string"),
    "name with a slash": top('name = "a/b"', "name: string should match pattern"),
    "name with dots": top('name = ".."', "name: string should match pattern"),
    "empty name": top('name = ""', "name: string should match pattern"),
    "name with a newline": top(r'name = "a\nb"', "name: string should match pattern"),
    "title a number": top("title = 3", "title: input should be a valid string"),
    "no seeds": top("seeds = []", "seeds: list should have at least 1 item"),
    "a negative seed": top("seeds = [-1]", "seeds[0]: input should be greater than or equal to 0"),
    "a seed too large": top("seeds = [2147483648]", "seeds[0]: input should be less than or equal to"),
    "a seed twice": top("seeds = [0, 0]", "seeds: 0 is listed twice"),
    "a seed with a fraction": top("seeds = [0.5]", "seeds[0]: input should be a valid integer"),
    "a seed a word": top('seeds = ["a"]', "seeds[0]: input should be a valid integer"),
    "seeds a number": top("seeds = 0", "seeds: input should be a valid list"),
    "a seed of 400 digits": top(f"seeds = [{BIG}]", "x.toml: an integer has more than 64 bits"),
    "a seed of 5000 digits": top(f"seeds = [{HUGE}]", "x.toml: a number has too many digits"),
    "a hexadecimal giant": top(f"seeds = [0x{'f' * 9000}]", "x.toml: an integer has more than 64 bits"),
    "deep arrays": top(f"seeds = {DEEP}", "x.toml: arrays or tables are nested more than 20 deep"),
    "arrays 100 deep": top(f"seeds = {'[' * 100}{']' * 100}", "x.toml: arrays or tables are nested more than 20 deep"),
    "deep tables": attack(f"x = {'{a=' * 3000}1{'}' * 3000}", "x.toml: "),
    "batch size 0": top("batch_size = 0", "batch_size: input should be greater than or equal to 1"),
    "batch size negative": top("batch_size = -5", "batch_size: input should be greater than or equal to 1"),
    "batch size huge": top("batch_size = 1000000000000", "batch_size: input should be less than or equal to"),
    "batch size a word": top('batch_size = "all"', "batch_size: input should be a valid integer"),
    "figures unknown": suite(GOOD + "[figures]\nstyle = 3\n", "figures.style: extra inputs are not permitted"),
    "figures a word": top('figures = "all"', "figures: input should be"),
    "eps missing": suite(DATA + MODEL + ATTACK, "attacks[0]: eps: missing"),
    "eps empty": eps("[]", "attacks[0].eps: list should have at least 1 item"),
    "eps negative": eps("[-0.1]", "attacks[0].eps[0]: must not be negative"),
    "eps nan": eps("[nan]", "attacks[0].eps[0]: must be a finite number"),
    "eps inf": eps("[inf]", "attacks[0].eps[0]: must be a finite number"),
    "eps 1e400": eps("[1e400]", "attacks[0].eps[0]: must be a finite number"),
    "eps of 400 digits": eps(f"[{BIG}]", "x.toml: an integer has more than 64 bits"),
    "eps of 400 digits and a fraction": eps(f"[{BIG}.5]", "attacks[0].eps[0]: must be a finite number"),
    "eps of 5000 digits": eps(HUGE, "x.toml: a number has too many digits"),
    "eps too large": eps("[1e7]", "eps: must not be above 1e+06"),
    "eps true": eps("true", "attacks[0].eps[0]: must be a finite number"),
    "eps a word": eps('"large"', "attacks[0].eps[0]: must be a finite number"),
    "eps a table": eps("{a = 1}", "attacks[0].eps[0]: must be a finite number"),
    "eps a date": eps("[2020-01-01]", "attacks[0].eps[0]: must be a finite number"),
    "eps a list in a list": eps("[[0.1]]", "attacks[0].eps[0]: must be a finite number"),
    "unknown attack": suite(
        GOOD.replace("fgsm", "fgms"), "attacks[0].use: unknown attack 'fgms'. Did you mean 'fgsm'?"
    ),
    "unknown option": attack("stps = 3", "attacks[0]: attack 'fgsm': unknown option 'stps'"),
    "unknown loss": attack('loss = "hinge"', "attacks[0]: attack 'fgsm': loss: "),
    "unknown norm": attack('norm = "l3"', "attacks[0].norm: input should be 'linf', 'l2', 'l1', 'l0', "),
    "unknown unit": attack('unit = "byte"', "attacks[0].unit: input should be 'pixel', 'std', 'count' or 'degrees'"),
    "unknown goal": attack('goal = "some"', "attacks[0].goal: input should be 'untargeted' or 'targeted'"),
    "unknown target": attack('goal = "targeted"\ntarget = "level9"', "target: unknown class 'level9'"),
    "target out of range": attack('goal = "targeted"\ntarget = 99', "attacks[0]: target: "),
    "negative target": attack('goal = "targeted"\ntarget = -1', "attacks[0]: target: "),
    "target of 400 digits": attack(f'goal = "targeted"\ntarget = {BIG}', "an integer has more than 64 bits"),
    "max_queries 0": attack("max_queries = 0", "attacks[0].max_queries: input should be greater than or equal to 1"),
    "max_queries 10**30": attack(f"max_queries = 1{'0' * 30}", "x.toml: an integer has more than 64 bits"),
    "max_queries 10**15": attack(f"max_queries = 1{'0' * 15}", "attacks[0].max_queries: input should be less than or"),
    "max_queries a fraction": attack("max_queries = 1.5", "attacks[0].max_queries: input should be a valid integer"),
    "time limit 0": attack("time_limit = 0", "attacks[0].time_limit: input should be greater than 0"),
    "time limit inf": attack("time_limit = inf", "attacks[0].time_limit: input should be a finite number"),
    "an unknown model of an attack": attack('models = ["cnn"]', "attacks[0]: models: there is no 'cnn' in this suite"),
    "an unknown dataset of an attack": attack('data = ["toys"]', "attacks[0]: data: there is no 'toys' in this suite"),
    "no models of an attack": attack("models = []", "attacks[0].models: list should have at least 1 item"),
    "a reserved name": attack('name = "worst case of all"', "attacks[0]: 'worst case of all' is the name of a line"),
    "a blank name": attack('name = " "', "attacks[0].name: must not be blank"),
    "a name that is a number": attack("name = 3", "attacks[0].name: input should be a valid string"),
    "an attack twice": suite(GOOD + ATTACK + EPS, f"'{CELLS}' is listed twice"),
    "two attacks of one name": suite(GOOD + ATTACK + "eps = [0.2]\n", f"two different cells are called '{CELLS}'"),
    "a model twice": suite(GOOD + MODEL, f"'{CELLS}' is listed twice"),
    "data twice": suite(GOOD + DATA, f"'{CELLS}' is listed twice"),
    "transfer in transfer": attack(
        '[[attacks]]\nuse = "transfer"\neps = [0.1]\nsurrogate = "levels"\n'
        'attack = {use = "transfer", surrogate = "levels"}',
        "attacks[1]: transfer: its attack cannot be a transfer attack itself",
    ),
    "transfer without a surrogate": attack('[[attacks]]\nuse = "transfer"\neps = 0.1', "surrogate: field required"),
    "transfer from nothing": attack(
        '[[attacks]]\nuse = "transfer"\neps = 0.1\nsurrogate = []', "surrogate: value should have at least 1 item"
    ),
    "transfer from an unknown model": attack(
        '[[attacks]]\nuse = "transfer"\neps = 0.1\nsurrogate = "cn"', "unknown model 'cn'"
    ),
    "transfer with an unknown attack": attack(
        '[[attacks]]\nuse = "transfer"\neps = 0.1\nsurrogate = "levels"\nattack = "bym"', "unknown attack 'bym'"
    ),
    "transfer with an attack without a name": attack(
        '[[attacks]]\nuse = "transfer"\neps = 0.1\nsurrogate = "levels"\nattack = {steps = 3}', "attack: missing name"
    ),
    "steps 0": attack('[[attacks]]\nuse = "pgd"\neps = 0.1\nsteps = 0', "attack 'pgd': steps: "),
    "steps a word": attack('[[attacks]]\nuse = "pgd"\neps = 0.1\nsteps = "many"', "attack 'pgd': steps: "),
    "unknown model": suite(GOOD.replace("levels", "level"), "models[0].use: unknown model 'level'"),
    "unknown model option": model("sharpnes = 1.0", "model 'levels': unknown option 'sharpnes'"),
    "a wrong model option": model('sharpness = "very"', "model 'levels': sharpness: "),
    "a model that cannot be built": model("sharpness = 0.0", "model 'levels' cannot be built: ZeroDivisionError"),
    "a harness option of a model": model("classes = 3", "'classes' is not an option: the harness sets it"),
    "no such weights": model('weights = "none.safetensors"', "none.safetensors"),
    "a NUL in a path": model(r'weights = "a\u0000b"', "models[0].weights: a path must not contain a NUL character"),
    "weights a folder": model('weights = "."', "models[0]"),
    "weights and training": model('weights = "a"\ntrain = {epochs = 1}', "models[0]"),
    "an unknown option of training": model("train = {epoch = 1}", "models[0].train.epoch: extra inputs"),
    "no epochs": model("train = {epochs = 0}", "models[0].train.epochs: input should be greater than or equal to 1"),
    "a learning rate of nan": model("train = {lr = nan}", "models[0].train.lr: "),
    "a model that cannot be trained": model("train = {epochs = 1}", "models[0] 'levels': "),
    "a model for no data": model("data = []", "models[0].data: list should have at least 1 item"),
    "a model for unknown data": model('data = ["toys"]', "models[0]: data: there is no 'toys' in this suite"),
    "unknown data": suite(GOOD.replace("dots", "dotz"), "data[0].use: unknown dataset 'dotz'"),
    "unknown data option": data("clases = 2", "dataset 'dots': unknown option 'clases'"),
    "unknown split": data('split = "all"', "data[0].split: input should be 'train' or 'test'"),
    "limit 0": data("limit = 0", "data[0].limit: input should be greater than or equal to 1"),
    "limit 10**12": data("limit = 1000000000000", "data[0].limit: input should be less than or equal to"),
    "limit true": data('limit = "all"', "data[0].limit: input should be a valid integer"),
    "a harness option of data": data('data_dir = "here"', "'data_dir' is not an option"),
    "missing files": suite(GOOD.replace('"dots"', '"mnist"'), "data[0]: "),
    "unknown diagnostic": diagnostic('use = "verdikt"', "diagnostics[0]"),
    "diagnostic eps 0": diagnostic("eps = 0", "diagnostics[0].eps[0]: input should be greater than 0"),
    "an eps without effect": diagnostic(
        'use = "certify"\neps = 0.1', "diagnostics[0]: diagnostic 'certify' takes no eps"
    ),
    "a norm without effect": diagnostic('use = "gradients"\nnorm = "l2"', "diagnostic 'gradients' takes no norm"),
    "diagnostic eps twice": diagnostic("eps = [0.1, 0.1]", "is listed twice"),
    "diagnostic limit": diagnostic("limit = 0", "diagnostics[0].limit: input should be greater than or equal to 1"),
    "diagnostic option": diagnostic("stepz = 3", "unknown option 'stepz'"),
    "diagnostic norm": diagnostic('norm = "l0"', "diagnostics[0].norm: input should be 'linf' or 'l2'"),
}
RAISING = {
    "Exception": ("raise ValueError('no')", "plugin mine.py: ValueError: no"),
    "two lines": ("raise ValueError('no\\nyes')", "plugin mine.py: ValueError: no"),
    "no text": ("raise ValueError", "plugin mine.py: ValueError"),
    "sys.exit(0)": ("sys.exit(0)", "plugin mine.py: SystemExit: 0"),
    "BaseException": ("raise BaseException('all')", "plugin mine.py: BaseException: all"),
    "GeneratorExit": ("raise GeneratorExit", "plugin mine.py: GeneratorExit"),
    "an exception of its own": ("class Mine(BaseException): ...\nraise Mine('x')", "plugin mine.py: Mine: x"),
    "an exception without str": (
        "class Mine(Exception):\n    def __str__(self):\n        raise TypeError\nraise Mine",
        "plugin mine.py: Mine",
    ),
    "a syntax error": ("def (", "plugin mine.py: SyntaxError"),
    "a missing import": ("import nowhere_to_be_found", "plugin mine.py: ModuleNotFoundError"),
    "endless recursion": ("def f(): f()\nf()", "plugin mine.py: RecursionError"),
    "no memory": ("raise MemoryError", "plugin mine.py: MemoryError"),
    "a control character": ("raise ValueError('a\\x1b[31mb')", "plugin mine.py: ValueError: a\\x1b[31mb"),
    "a name that is taken": (
        "@rc.attack('fgsm')\ndef mine(model, images, labels, eps): ...",
        "attack 'fgsm' is registered already",
    ),
    "a name with a newline": (
        "@rc.attack('a\\nb')\ndef mine(model, images, labels, eps): ...",
        "attack 'a\\nb': a name must not contain control characters",
    ),
}
PLUGINS = {f"plugin: {name}": suite(GOOD, message, plugin) for name, (plugin, message) in RAISING.items()}
BUILDING = {
    "BaseException": "raise BaseException('no')",
    "SystemExit": "sys.exit(0)",
    "nothing": "return None",
    "a word": "return 'model'",
}
BUILT = {
    f"a model factory gives {name}": suite(
        GOOD.replace("levels", "mine"),
        "model 'mine' ",
        f"@rc.model('mine', pretrained=True)\ndef mine(*, classes, channels, size):\n    {body}\n",
    )
    for name, body in BUILDING.items()
}
ON_TOYS = ["attack", "cnn-small", "fgsm", "--limit", "2"]
GET = ["data", "get", "mnist", "--data-dir", "d", "--mirror"]
CALLS = {
    "no suite": Case(["run", "none.toml"], "none.toml: no such suite file"),
    "a folder as suite": Case(["run", "."], ".: not a regular file; a suite is a TOML file"),
    "a device as suite": Case(["run", "/dev/null"], "/dev/null: not a regular file"),
    "an endless device": Case(["check", "/dev/zero"], "/dev/zero: not a regular file"),
    "a pipe as suite": Case(["run", "pipe"], "pipe: not a regular file"),
    "a pipe as plugin": Case(["list", "--plugin", "pipe"], "plugin pipe: not a regular file"),
    "a folder as plugin": Case(["list", "--plugin", "."], "plugin .: not a regular file"),
    "no plugin": Case(["list", "--plugin", "mine.py"], "plugin mine.py: no such file"),
    "a name too long": Case(["run", "x" * 300 + ".toml"], "File name too long"),
    "out below a file": Case(["run", "x.toml", "--plugin", "tiny_plugin.py", "--out", "x.toml/o"], "cannot be written"),
    "out too long": Case(
        ["run", "x.toml", "--plugin", "tiny_plugin.py", "--out", f"new/{'o' * 300}"], "cannot be written"
    ),
    "unknown engine": Case(["run", "x.toml", "--engine", "rey"], "unknown engine 'rey'. Did you mean 'ray'?"),
    "an address without ray": Case(["run", "x.toml", "--address", "auto"], "--address needs --engine ray"),
    "an address of nothing": Case(
        ["run", "x.toml", "--engine", "ray", "--address", "no\nwhere"],
        r"--address 'no\nwhere': must be HOST:PORT or auto",
    ),
    "no GPUs at all": Case(["run", "x.toml", "--engine", "ray", "--gpus-per-task", "nan"], "gpus_per_task: "),
    "a GPU and a half": Case(["run", "x.toml", "--engine", "ray", "--gpus-per-task", "1.5"], "must be a whole number"),
    "part 9/8": Case(["run", "x.toml", "--part", "9/8"], "--part 9/8: the first number must be from 1 to 8"),
    "part of many digits": Case(["run", "x.toml", "--part", f"1/{HUGE}"], "must be like 3/8"),
    "merge of nothing": Case(["merge", "out", "nothing"], "nothing/run.json: no such file"),
    "unknown device": Case([*ON_TOYS, "--device", "gpu"], "device 'gpu' is not available"),
    "unknown model": Case(["attack", "cn", "fgsm"], "unknown model 'cn'. Did you mean 'cnn'?"),
    "a plugin's model without the plugin": Case(["attack", "my-net", "fgsm"], "needs its plugin (--plugin FILE)"),
    "a model with a newline": Case(["attack", "c\nn", "fgsm"], r"unknown model 'c\nn'"),
    "a model with an escape": Case(["attack", "c\x1b[31mn", "fgsm"], r"unknown model 'c\x1b[31mn'"),
    "an empty model": Case(["attack", "", "fgsm"], "use: string should have at least 1 character"),
    "markup": Case(["attack", "[red]x[/]", "fgsm"], "unknown model '[red]x[/]'"),
    "unknown tag": Case(
        ["attack", "cnn:q", "fgsm"], "no shipped weights for model 'cnn:q' on data 'toys'; shipped: cnn:a"
    ),
    "eps a word": Case([*ON_TOYS, "--eps", "big"], "--eps: 'big' is not a list of numbers"),
    "eps nothing": Case([*ON_TOYS, "--eps", ""], "--eps: '' is not a list of numbers"),
    "eps of 400 digits": Case([*ON_TOYS, "--eps", BIG], "eps[0]: must be a finite number"),
    "eps nan": Case([*ON_TOYS, "--eps", "nan"], "eps[0]: must be a finite number"),
    "eps negative": Case([*ON_TOYS, "--eps", "-1"], "must not be negative"),
    "eps of 8 bits": Case([*ON_TOYS, "--eps", "8"], "eps: must not be above 1, the range of pixels, but is 8"),
    "eps with a comma": Case([*ON_TOYS, "--eps", "0,03"], "must not be above 1, the range of pixels, but is 3"),
    "eps over nothing": Case([*ON_TOYS, "--eps", "8/0"], "--eps: '8/0' is not a list of numbers"),
    "diagnose with eps of 8 bits": Case(["diagnose", "cnn-small", "--limit", "2", "--eps", "8"], "must not be above 1"),
    "diagnose with a word as eps": Case(["diagnose", "cnn-small", "--eps", "big"], "--eps: 'big' is not a number"),
    "a setting without a value": Case([*ON_TOYS, "--set", "steps"], "--set steps: write NAME=VALUE"),
    "a setting of 400 digits": Case([*ON_TOYS, "--set", f"steps={BIG}"], "--set steps: an integer has more than 64"),
    "a setting of 5000 digits": Case([*ON_TOYS, "--set", f"steps={HUGE}"], "--set steps: a number has too many digits"),
    "a deep setting": Case([*ON_TOYS, "--set", f"steps={DEEP}"], "--set steps: arrays or tables are nested"),
    "an unknown setting": Case([*ON_TOYS, "--set", "stps=3"], "unknown option 'stps'"),
    "max_queries 10**30": Case([*ON_TOYS, "--set", f"max_queries=1{'0' * 30}"], "--set max_queries: an integer has"),
    "no rows folder": Case([*ON_TOYS, "--rows", "no/rows.csv"], "--rows no/rows.csv: no such folder"),
    "unknown norm": Case(
        [*ON_TOYS, "--norm", "l3"], "norm: input should be 'linf', 'l2', 'l1', 'l0', 'affine' or 'viewpoint'"
    ),
    "unknown split": Case([*ON_TOYS, "--split", "all"], "split: input should be 'train' or 'test'"),
    "weights that are none": Case([*ON_TOYS, "--weights", "x.toml"], "x.toml"),
    "weights a pipe": Case([*ON_TOYS, "--weights", "pipe"], "pipe: not a regular file"),
    "unknown data": Case([*ON_TOYS, "--data", "toy"], "unknown dataset 'toy'. Did you mean 'toys'?"),
    "unknown check": Case(["diagnose", "cnn-small", "--limit", "2", "--check", "validty"], "'validty'"),
    "unknown part": Case(["inspect", "routin", "o"], "inspect: unknown part 'routin'. Did you mean 'routing'?"),
    "samples a word": Case(["inspect", "routing", "o", "--samples", "a"], "--samples: 'a' is not a list"),
    "inspect nothing": Case(["inspect", "routing"], "name the out folder of a run, or a model with --model"),
    "unknown list": Case(["list", "modles"], "Did you mean 'models'?"),
    "train nothing": Case(["train", "cmn"], "unknown model 'cmn'. Did you mean 'cnn'?"),
    "train below a file": Case(
        ["train", "cnn-small", "--limit=5", "--holdout=0", "--out=x.toml/o"], "cannot create the folder"
    ),
    "train with a deep setting": Case(["train", "cnn-small", "--set", f"width={DEEP}"], "--set width: arrays"),
    "a bad attack name": Case(["new", "attack", "My Attack"], "a name is made of small letters"),
    "an attack that exists": Case(["new", "attack", "fgsm"], "there is an attack of that name already"),
    "export to a full folder": Case(["data", "export", "."], "choose an empty folder"),
    "unknown download": Case(["data", "get", "mnst"], "unknown dataset 'mnst'. Did you mean 'mnist'?"),
    "mirror without a scheme": Case([*GET, "example.org"], "mirror 'example.org': must begin with https:// or http://"),
    "mirror a file": Case([*GET, "file:///etc"], "must begin with https:// or http://"),
    "mirror without a host": Case([*GET, "https://"], "mirror 'https://': not a valid URL"),
    "mirror with half a host": Case([*GET, "https://[::1"], "mirror 'https://[::1': not a valid URL"),
    "mirror with a bad port": Case([*GET, "https://a:b/c"], "mirror 'https://a:b/c': not a valid URL"),
    "mirror with a port too large": Case([*GET, "https://a:99999/"], "not a valid URL"),
    "mirror with a space": Case([*GET, "https://a b/"], "not a valid URL"),
    "mirror with a newline": Case([*GET, "https://a\nb/"], "not a valid URL"),
    "mirror with two dots": Case([*GET, "https://a..b/"], "not a valid URL"),
    "mirror beyond ASCII": Case([*GET, "https://a/ü"], "not a valid URL"),
    "mirror with a query": Case([*GET, "https://a/?x=1"], "must not contain '?' or '#'"),
    "no out folder": Case(["table", "nowhere"], "Is nowhere the out folder of `robustcaps run`?"),
    "out a file": Case(["table", "x.toml"], "x.toml"),
    "collection of a missing suite": Case(
        ["run", "c.toml"], "none.toml: no such suite file", {"c.toml": 'suites = ["none.toml"]'}
    ),
    "collection of nothing": Case(["run", "c.toml"], "suites: list should have at least", {"c.toml": "suites = []"}),
    "collection of itself": Case(["run", "c.toml"], "c.toml", {"c.toml": 'suites = ["c.toml"]'}),
    "collection of one twice": Case(
        ["run", "c.toml"], "two suites are called 'x'", {"c.toml": 'suites = ["x.toml", "x.toml"]'}
    ),
    "collection with a NUL": Case(["run", "c.toml"], "NUL character", {"c.toml": r'suites = ["a\u0000"]'}),
    "collection of a folder": Case(["run", "c.toml"], "not a regular file", {"c.toml": 'suites = ["."]'}),
}


def signed(record: object) -> str:
    """A record with a checksum that matches."""
    content = dict(record) if isinstance(record, dict) else {}
    return json.dumps({**content, "checksum": json_checksum(content)})


CELL = {"id": "a", "names": {"model": "m"}}
RECORDS: dict[str, str | bytes] = {
    "empty": "",
    "half": "{",
    "a list": "[]",
    "a number": "3",
    "null": "null",
    "deep": "[" * 100_000,
    "binary": b"\xff\x00",
    "no cells": signed({"suite": {}}),
    "cells a word": signed({"suite": {}, "cells": "all"}),
    "cells of numbers": signed({"suite": {}, "cells": [1]}),
    "a cell without an id": signed({"suite": {}, "cells": [{"names": {}}]}),
    "a cell of another folder": signed({"suite": {}, "cells": [{**CELL, "id": "../../etc/passwd"}]}),
    "a suite of another shape": signed({"suite": [], "cells": [CELL]}),
    "models of another shape": signed({"suite": {}, "cells": [CELL], "models": [{"label": 3}]}),
    "no checksum": json.dumps({"suite": {}, "cells": [CELL]}),
    "another checksum": json.dumps({"suite": {}, "cells": [CELL], "checksum": "0"}),
    "a giant number": '{"suite": {}, "cells": [' + HUGE + "]}",
}


def broken_folders() -> Iterator[tuple[str, Case]]:
    for name, content in RECORDS.items():
        files: dict[str, str | bytes] = {"o/run.json": content, "o/cells/a.parquet": b"x"}
        for command in ("table", "figures", "report", "inspect routing"):
            if command == "table" or name in ("half", "cells a word", "deep"):
                yield f"{command}: run.json: {name}", Case([*command.split(), "o"], "o/run.json: ", files)
    for name in ("empty", "half", "a list", "null", "deep", "binary", "a giant number"):
        yield (
            f"table: collection.json: {name}",
            Case(["table", "o"], "o/collection.json: ", {"o/collection.json": RECORDS[name]}),
        )


CASES = {**SUITES, **PLUGINS, **BUILT, **CALLS, **dict(broken_folders())}


def tree(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


def call(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> int | str | None:
    """The exit code of the command line, in this process."""
    monkeypatch.setattr(sys, "argv", ["robustcaps", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


def test_the_catalogue_is_large():
    assert len(CASES) >= 150


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.usefixtures("registries", "plugin")
def test_bad_input_is_one_line_with_exit_code_2_and_leaves_nothing(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROBUSTCAPS_DATA", raising=False)
    os.mkfifo("pipe")
    for name, content in {"x.toml": GOOD, **case.files}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = tree(tmp_path)
    code = call(monkeypatch, case.words)
    said = capsys.readouterr().err
    assert case.message in said and said.startswith("error: ") and said.count("\n") == 1
    assert (code, "Traceback" in said, len(said) < 6000) == (2, False, True)
    assert tree(tmp_path) == before


def test_a_good_suite_is_none_of_them(registries, plugin, tmp_path, monkeypatch):
    (tmp_path / "x.toml").write_text(GOOD)
    assert rc.run(tmp_path / "x.toml", tmp_path / "o", plugins=[plugin]).computed == 1
