"""Records what torch.optim makes of a small network in 50 steps: python3 record.py > ref.json

Everything is computed in float64, so the record is what float32 should come near to. LAMB, which PyTorch lacks, is
algorithm 2 of You et al., arXiv 1904.00962. PyTorch's Muon computes products in bfloat16, so Muon is written out here:
Jordan et al., https://kellerjordan.github.io/posts/muon, with AdamW for vectors.
"""

import json

import torch
from torch.optim import lr_scheduler as schedulers

STEPS, BATCH, BATCHES = 50, 12, 4


def numbers(count, seed, scale):
    """Numbers that float32 holds, the same in the test."""
    return [((i * i * 31 + i * 7919 + seed * 104729) % 2001 - 1000) * scale / 1024 for i in range(count)]


def tensor(shape, seed, scale):
    count = torch.Size(shape).numel()
    return torch.tensor(numbers(count, seed, scale), dtype=torch.float64).reshape(shape)


X = tensor([BATCH * BATCHES, 4], 1, 1.0)
TARGET = tensor([BATCH * BATCHES, 3], 2, 2.0)
# The greatest of the first three features; some are ignored.
LABELS = X[:, :3].argmax(1)
LABELS[3::7] = -100
SHAPES = {"a.weight": [4, 8], "a.bias": [8], "b.weight": [8, 3], "b.bias": [3]}


class Lamb(torch.optim.Optimizer):
    def __init__(self, parameters, lr, betas, eps, weight_decay):
        super().__init__(parameters, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for w in group["params"]:
                state = self.state[w]
                if not state:
                    state.update(t=0, m=torch.zeros_like(w), v=torch.zeros_like(w))
                state["t"] += 1
                state["m"].mul_(beta1).add_(w.grad, alpha=1 - beta1)
                state["v"].mul_(beta2).addcmul_(w.grad, w.grad, value=1 - beta2)
                m = state["m"] / (1 - beta1 ** state["t"])
                v = state["v"] / (1 - beta2 ** state["t"])
                u = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * w
                w.sub_(group["lr"] * (w.norm() / u.norm()) * u)


def nearly_orthogonal(x, coefficients, iterations, eps):
    a, b, c = coefficients
    x = x / x.norm().clamp(min=eps)
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon(torch.optim.AdamW):
    def __init__(self, groups, lr, weight_decay, **own):
        super().__init__(groups, lr=lr, weight_decay=weight_decay)
        self.own, self.means = own, {}

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in [w for w in group["params"] if w.ndim == 2]:
                self.update(w, group["lr"], group["weight_decay"])
                w.grad = None
        super().step()

    def update(self, w, lr, weight_decay):
        momentum, own = self.own["momentum"], self.own
        mean = self.means.setdefault(w, torch.zeros_like(w))
        mean.mul_(momentum).add_(w.grad, alpha=1 - momentum)
        u = momentum * mean + (1 - momentum) * w.grad if own["nesterov"] else mean
        u = nearly_orthogonal(u, own["coefficients"], own["iterations"], own["eps"])
        rows, columns = w.shape
        factor = max(1, rows / columns) ** 0.5 if own["rate"] == "original" else 0.2 * max(rows, columns) ** 0.5
        w.mul_(1 - lr * weight_decay).sub_(u, alpha=lr * factor)


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr, betas, weight_decay):
        super().__init__(parameters, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for w in group["params"]:
                m = self.state[w].setdefault("m", torch.zeros_like(w))
                w.mul_(1 - group["lr"] * group["weight_decay"])
                w.sub_(group["lr"] * (beta1 * m + (1 - beta1) * w.grad).sign())
                m.mul_(beta2).add_(w.grad, alpha=1 - beta2)


def adafactor_of(o, groups, **shared):
    """torch.optim's Adafactor, or with a fixed rate that of transformers."""
    eps, decay = (o["eps"], o["least_scale"]), -o["decay_exponent"]
    if not o["fixed_rate"]:
        return torch.optim.Adafactor(groups, beta2_decay=decay, eps=eps, d=o["clip"], **shared)
    from transformers.optimization import Adafactor

    own = dict(scale_parameter=not o["unscaled"], relative_step=False)
    return Adafactor(groups, decay_rate=decay, eps=eps, clip_threshold=o["clip"], **own, **shared)


def composed_of(o, groups, lr, maximize):
    """Optimizers whose step graphc composes of ops: a rule with its numbers."""
    (rule, numbers), = o["rule"].items()
    numbers = dict(numbers)
    if rule == "adafactor":
        return adafactor_of(numbers, groups, lr=lr, weight_decay=o["weight_decay"])
    if "beta1" in numbers:
        numbers["betas"] = numbers.pop("beta1"), numbers.pop("beta2")
    if rule == "adagrad":
        numbers["initial_accumulator_value"] = numbers.pop("initial")
    if rule == "amsgrad":
        numbers["amsgrad"] = True
    if rule in ("nadam", "radam"):
        numbers["decoupled_weight_decay"] = o["decoupled"]
    if rule != "lion":
        numbers["maximize"] = maximize
    classes = {
        "damped": torch.optim.SGD, "amsgrad": torch.optim.AdamW if o["decoupled"] else torch.optim.Adam,
        "adagrad": torch.optim.Adagrad, "adadelta": torch.optim.Adadelta, "adamax": torch.optim.Adamax, "nadam": torch.optim.NAdam,
        "radam": torch.optim.RAdam, "lion": Lion,
    }
    return classes[rule](groups, lr=lr, weight_decay=o["weight_decay"], **numbers)


def optimizer_of(options, groups, maximize=False):
    o = dict(options)
    name, lr = o.pop("name"), o.pop("lr")
    if name == "composed":
        return composed_of(o, groups, lr, maximize)
    adam = lambda: dict(betas=(o["beta1"], o["beta2"]), eps=o["eps"], weight_decay=o["weight_decay"])
    if maximize:
        return torch.optim.AdamW(groups, lr=lr, **adam(), maximize=True)
    return {
        "sgd": lambda: torch.optim.SGD(groups, lr=lr, **o),
        "adam": lambda: torch.optim.Adam(groups, lr=lr, **adam()),
        "adamw": lambda: torch.optim.AdamW(groups, lr=lr, **adam()),
        "lamb": lambda: Lamb(groups, lr=lr, **adam()),
        "rmsprop": lambda: torch.optim.RMSprop(groups, lr=lr, **o),
        "muon": lambda: Muon(groups, lr=lr, **o),
    }[name]()


def scheduler_of(text, optimizer, lr):
    """The classes that docs name for a schedule."""
    warmup = None
    if text.startswith("warmup:"):
        warmup, text = text.removeprefix("warmup:").split(" ")
        steps, _, start = warmup.partition(",")
        warmup = (int(steps), float(start) if start else 1 / (int(steps) + 1))
    name, _, values = text.partition(":")
    values = [float(value) for value in values.split(",")] if values else []
    rise = warmup[0] if warmup else 0
    if name == "onecycle":
        pct = rise / values[0] if warmup else 0.3
        return schedulers.OneCycleLR(
            optimizer, max_lr=lr, total_steps=int(values[0]), pct_start=pct, cycle_momentum=False
        )
    first = [schedulers.LinearLR(optimizer, warmup[1], 1.0, rise)] if warmup else []
    floor = values[1] if len(values) > 1 else 0.0
    if name == "constant":
        return first[0] if first else schedulers.ConstantLR(optimizer, 1.0)
    if name == "step":
        return schedulers.ChainedScheduler(first + [schedulers.StepLR(optimizer, int(values[0]), values[1])])
    if name == "multistep":
        milestones = [int(value) for value in values[:-1]]
        return schedulers.ChainedScheduler(first + [schedulers.MultiStepLR(optimizer, milestones, values[-1])])
    last = {
        "cosine": lambda: schedulers.CosineAnnealingLR(optimizer, int(values[0]) - rise, floor * lr),
        "linear": lambda: schedulers.LinearLR(optimizer, 1.0, floor, int(values[0]) - rise),
    }[name]()
    return schedulers.SequentialLR(optimizer, first + [last], [rise]) if first else last


def loss_of(options, y, rows):
    functional = torch.nn.functional
    match options["loss"]:
        case "cross_entropy":
            return functional.cross_entropy(y, LABELS[rows], label_smoothing=options.get("label_smoothing", 0.0))
        case "bce":
            # Targets are probabilities.
            return functional.binary_cross_entropy_with_logits(y, TARGET[rows] / 4 + 0.5)
        case "mse":
            return functional.mse_loss(y, TARGET[rows])
        case "huber":
            return functional.huber_loss(y, TARGET[rows])
        case "l1":
            return functional.l1_loss(y, TARGET[rows])


def train(options):
    weights = {
        name: tensor(shape, seed + 3, 0.5).requires_grad_()
        for seed, (name, shape) in enumerate(SHAPES.items())
    }
    optimizer_options = options["optimizer"]
    groups = []
    for name, weight in weights.items():
        group = dict(params=[weight])
        for given in options.get("groups", []):
            pattern = given["pattern"]
            if name == pattern or pattern.startswith("*") and name.endswith(pattern[1:]):
                group["lr"] = optimizer_options["lr"] * given["lr"]
                if "weight_decay" in given:
                    group["weight_decay"] = given["weight_decay"]
                break
        groups.append(group)
    optimizer = optimizer_of(optimizer_options, groups, options.get("maximize", False))
    schedule = options.get("lr_schedule")
    scheduler = scheduler_of(schedule, optimizer, optimizer_options["lr"]) if schedule else None
    losses, rates, norms = [], [], []
    for step in range(STEPS):
        rows = slice(step % BATCHES * BATCH, (step % BATCHES + 1) * BATCH)
        h = torch.tanh(X[rows] @ weights["a.weight"] + weights["a.bias"])
        loss = loss_of(options, h @ weights["b.weight"] + weights["b.bias"], rows)
        optimizer.zero_grad()
        loss.backward()
        if "clip_norm" in options:
            norms.append(torch.nn.utils.clip_grad_norm_(weights.values(), options["clip_norm"]).item())
        if "clip_value" in options:
            torch.nn.utils.clip_grad_value_(weights.values(), options["clip_value"])
        losses.append(loss.item())
        rates.append(max(group["lr"] for group in optimizer.param_groups))
        optimizer.step()
        if scheduler and step + 1 < STEPS:
            scheduler.step()
    short = lambda values: [float(f"{value:.10g}") for value in values]
    record = dict(options=options, losses=short(losses))
    if schedule:
        record["rates"] = rates
    if norms:
        record["norms"] = short(norms)
    record["weights"] = {name: short(weight.detach().flatten().tolist()) for name, weight in weights.items()}
    return record


def cases():
    sgd = lambda momentum=0.0, nesterov=False, weight_decay=0.0: dict(
        name="sgd", lr=0.2, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay
    )
    adam = lambda name, **other: dict(
        dict(name=name, lr=0.01, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.05), **other
    )
    rmsprop = lambda momentum, centered: dict(
        name="rmsprop", lr=0.002, alpha=0.95, eps=1e-6, weight_decay=0.01, momentum=momentum, centered=centered
    )
    muon = lambda nesterov, rate: dict(
        name="muon", lr=0.02, momentum=0.9, nesterov=nesterov, weight_decay=0.05, coefficients=[3.4445, -4.775, 2.0315],
        iterations=5, eps=1e-7, rate=rate
    )
    entropy = dict(loss="cross_entropy")
    for schedule in [
        "step:10,0.5", "multistep:10,20,35,0.3", "cosine:50", "cosine:50,0.1", "linear:50", "linear:50,0.25",
        "onecycle:50", "warmup:10 constant", "warmup:5 step:10,0.5", "warmup:15 multistep:10,20,0.3",
        "warmup:10,0.01 cosine:50", "warmup:10 linear:50", "warmup:20 onecycle:50",
    ]:
        yield entropy | dict(optimizer=sgd(0.9), lr_schedule=schedule)
    yield entropy | dict(optimizer=adam("adamw"), lr_schedule="warmup:10 cosine:50")
    for optimizer in [
        sgd(), sgd(weight_decay=0.01), sgd(0.9, True, 0.01), adam("adam"), adam("adamw"), adam("lamb", eps=1e-6),
        rmsprop(0.0, False), rmsprop(0.0, True), rmsprop(0.9, False), rmsprop(0.9, True),
    ]:
        yield entropy | dict(optimizer=optimizer)
    yield entropy | dict(optimizer=muon(True, "match_rms_adamw"))
    yield entropy | dict(optimizer=muon(False, "original"), lr_schedule="linear:50", clip_norm=0.3, clip_value=0.05)
    yield entropy | dict(optimizer=adam("lamb", eps=1e-6), lr_schedule="linear:50", clip_norm=0.3)
    yield entropy | dict(optimizer=sgd(0.9), clip_norm=0.25)
    yield entropy | dict(optimizer=adam("adamw"), clip_norm=0.25)
    yield entropy | dict(optimizer=sgd(0.9), clip_value=0.05)
    yield entropy | dict(optimizer=sgd(0.9), clip_norm=0.25, clip_value=0.05)
    no_decay = dict(pattern="*.bias", lr=1.0, weight_decay=0.0)
    yield entropy | dict(optimizer=adam("adamw", weight_decay=0.5), groups=[no_decay])
    slow = dict(pattern="a.weight", lr=0.1)
    yield entropy | dict(optimizer=sgd(0.9, False, 0.1), groups=[no_decay, slow], lr_schedule="linear:50,0.1")
    yield entropy | dict(optimizer=adam("lamb", eps=1e-6), groups=[slow, no_decay])
    yield entropy | dict(optimizer=sgd(0.9), label_smoothing=0.1)
    composed = lambda lr, weight_decay, decoupled, **rule: dict(
        name="composed", rule=rule, lr=lr, weight_decay=weight_decay, decoupled=decoupled
    )
    betas = dict(beta1=0.9, beta2=0.95)
    moments = dict(betas, eps=1e-8)
    adagrad = dict(lr_decay=0.01, initial=0.01, eps=1e-10)
    nadam = dict(moments, momentum_decay=0.004)
    adafactor = dict(decay_exponent=0.8, eps=1.1920928955078125e-7, least_scale=0.001, clip=1.0, fixed_rate=False, unscaled=False)
    for optimizer in [
        composed(0.1, 0.01, False, damped=dict(momentum=0.9, dampening=0.4)), composed(0.01, 0.05, False, amsgrad=moments),
        composed(0.01, 0.05, True, amsgrad=moments), composed(0.05, 0.01, False, adagrad=adagrad),
        composed(1.0, 0.01, False, adadelta=dict(rho=0.9, eps=1e-6)), composed(0.01, 0.01, False, adamax=moments), composed(0.01, 0.01, False, nadam=nadam),
        composed(0.01, 0.05, False, radam=dict(moments, beta2=0.9999)), composed(0.001, 0.1, True, lion=betas),
        composed(0.16, 0.05, True, adafactor=adafactor), composed(0.1, 0.05, True, adafactor=dict(adafactor, eps=1e-30, fixed_rate=True)),
        composed(0.02, 0.05, True, adafactor=dict(adafactor, eps=1e-20, clip=2.0, fixed_rate=True, unscaled=True)),
    ]:
        yield entropy | dict(optimizer=optimizer)
    yield entropy | dict(
        optimizer=composed(0.01, 0.05, True, radam=moments), groups=[no_decay, slow], lr_schedule="linear:50", clip_norm=0.3,
        clip_value=0.05
    )
    yield entropy | dict(optimizer=composed(0.01, 0.05, True, nadam=nadam), maximize=True, clip_norm=0.3)
    yield entropy | dict(
        optimizer=composed(0.16, 0.05, True, adafactor=adafactor), groups=[no_decay, slow], lr_schedule="linear:50", clip_norm=0.3
    )
    yield entropy | dict(optimizer=adam("adamw"), maximize=True)
    for loss in ["mse", "bce", "huber", "l1"]:
        yield dict(loss=loss, optimizer=sgd(0.9))


print("[\n" + ",\n".join(json.dumps(train(options)) for options in cases()) + "\n]")
