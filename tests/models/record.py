"""What PyTorch makes of the models in `graphc::models` and of layers in `graphc::nn`: losses, norms of gradients, running
statistics. Weights and data are functions of their names (`numbers`), so none are stored.

    python3 tests/models/record.py            # torch 2.15, torchvision 0.29; writes *.json beside it
"""

import json
import math
import pathlib
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).parent
MASK = (1 << 64) - 1


def fnv(name):
    """FNV-1a of 64 bits."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = ((state ^ byte) * 0x100000001B3) & MASK
    return state


def numbers(name, count):
    """Numbers in [0, 1), multiples of 2^-24: splitmix64 of the name's hash and the place."""
    with np.errstate(over="ignore"):
        z = np.uint64(fnv(name)) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) / 2.0**24


def weight(name, shape):
    """The first content of a variable, by its name and rank."""
    signed = 2.0 * numbers(name, math.prod(shape)) - 1.0
    if len(shape) > 1:
        values = signed * math.sqrt(3.0 / math.prod(shape[1:]))
    elif name.endswith("running_var") or name.endswith("weight"):
        values = 1.0 + 0.5 * signed
    else:
        values = 0.1 * signed
    return torch.from_numpy(values.astype(np.float32)).reshape(shape)


def floats(name, shape, shift=0.0):
    signed = 2.0 * numbers(name, math.prod(shape)) - 1.0
    return torch.from_numpy((signed + shift).astype(np.float32)).reshape(shape)


def classes(name, shape, count):
    values = np.floor(numbers(name, math.prod(shape)) * count).astype(np.int64)
    return torch.from_numpy(values).reshape(shape)


def fill(model):
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.dtype.is_floating_point:
                value.copy_(weight(name, tuple(value.shape)))
    return model


def rounded(values):
    return [float(f"{value:.9g}") for value in values]


def model_case(model, feeds, loss_of, lr, steps=4):
    """Norms of all gradients at first, and the losses of some steps of SGD."""
    fill(model).train()
    loss_of(model, *feeds).backward()
    norms = {name: p.grad.double().norm().item() for name, p in model.named_parameters()}
    model.zero_grad()
    fill(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for _ in range(steps):
        loss = loss_of(model, *feeds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        evaluated = loss_of(model, *feeds).item()
    names = list(norms)
    return {
        "losses": rounded(losses),
        "evaluated": rounded([evaluated])[0],
        "gradients": dict(zip(names, rounded(norms[name] for name in names))),
    }


def classified(model, x, labels):
    return F.cross_entropy(model(x), labels)


def resnet(block, layers, width, cifar):
    from torchvision.models import resnet as models

    class Narrow(models.ResNet):
        """torchvision's with another number of channels, and a stem for small images."""

        def __init__(self):
            super().__init__(block, layers, num_classes=10)
            self.inplanes = width
            kernel, stride = (3, 1) if cifar else (7, 2)
            self.conv1 = nn.Conv2d(3, width, kernel, stride, kernel // 2, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            if cifar:
                self.maxpool = nn.Identity()
            self.layer1 = self._make_layer(block, width, layers[0])
            self.layer2 = self._make_layer(block, 2 * width, layers[1], stride=2)
            self.layer3 = self._make_layer(block, 4 * width, layers[2], stride=2)
            self.layer4 = self._make_layer(block, 8 * width, layers[3], stride=2)
            self.fc = nn.Linear(8 * width * block.expansion, 10)

    return Narrow()


def images(size, batch=4):
    return floats("x", (batch, 3, size, size)), classes("labels", (batch,), 10)


def resnet18():
    from torchvision.models.resnet import BasicBlock

    return model_case(resnet(BasicBlock, [2, 2, 2, 2], 8, True), images(16), classified, 0.01)


def resnet18_stem():
    from torchvision.models.resnet import BasicBlock

    return model_case(resnet(BasicBlock, [1, 1, 1, 1], 8, False), images(64), classified, 0.01)


def resnet50():
    from torchvision.models.resnet import Bottleneck

    return model_case(resnet(Bottleneck, [2, 1, 1, 1], 8, True), images(16), classified, 0.01)


def mobilenet_v2():
    """With the stem for small images: the second stage keeps the size, too, so its first block may be a residual."""
    from torchvision.models import mobilenet_v2 as model

    model = model(num_classes=10, width_mult=0.25, dropout=0.0)
    model.features[0][0].stride = model.features[2].conv[1][0].stride = (1, 1)
    model.features[2].use_res_connect = True
    # At larger rates noise of 1e-6 in the images moves PyTorch's own fourth loss by a hundredth: rectifiers take the other side.
    return model_case(model, images(16), classified, 0.0001)


def vit():
    from torchvision.models.vision_transformer import VisionTransformer

    return model_case(VisionTransformer(16, 4, 2, 2, 24, 48, num_classes=10), images(16), classified, 0.01)


class Gpt2(nn.Module):
    """The model of OpenAI's weights: products are [inputs, outputs], the head is the table of tokens."""

    def __init__(self, layers=2, width=24, heads=3, sequence=12, vocabulary=40):
        super().__init__()
        self.heads = heads
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(sequence, width)
        self.h = nn.ModuleList(self.block(width) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    @staticmethod
    def block(width):
        block = nn.Module()
        block.ln_1, block.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        block.attn, block.mlp = nn.Module(), nn.Module()
        block.attn.c_attn, block.attn.c_proj = Product(width, 3 * width), Product(width, width)
        block.mlp.c_fc, block.mlp.c_proj = Product(width, 4 * width), Product(4 * width, width)
        return block

    def attend(self, block, x):
        n, t, width = x.shape
        split = lambda x: x.reshape(n, t, self.heads, width // self.heads).transpose(1, 2)
        query, key, value = (split(part) for part in block.attn.c_attn(x).split(width, dim=2))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return block.attn.c_proj(seen.transpose(1, 2).reshape(n, t, width))

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = x + self.attend(block, block.ln_1(x))
            x = x + block.mlp.c_proj(F.gelu(block.mlp.c_fc(block.ln_2(x)), approximate="tanh"))
        return self.ln_f(x) @ self.wte.weight.T


class Product(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class LstmLm(nn.Module):
    def __init__(self, vocabulary=40, width=12, hidden=16, layers=2):
        super().__init__()
        self.encoder = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, hidden, layers, batch_first=True)
        self.decoder = nn.Linear(hidden, vocabulary)

    def forward(self, tokens):
        return self.decoder(self.rnn(self.encoder(tokens))[0])


def tokens(batch, time, vocabulary):
    return classes("tokens", (batch, time), vocabulary), classes("labels", (batch, time), vocabulary)


def next_tokens(model, tokens, labels):
    return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


def gpt2():
    return model_case(Gpt2(), tokens(4, 8, 40), next_tokens, 0.05)


def lstm_lm():
    return model_case(LstmLm(), tokens(4, 7, 40), next_tokens, 0.5)


def layer_cases():
    """Layers by name: a module, what it is applied to, by name, and how."""
    plain = lambda module, x: module(x)
    x = lambda *shape: {"x": shape}
    image, sequence = x(4, 6, 7, 5), x(4, 5, 8)
    both = {"x": (4, 5, 8), "memory": (4, 6, 8)}
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    padding = numbers("padding", 4 * 6).reshape(4, 6) < 0.4
    padding[:, 0] = False
    padding = torch.from_numpy(padding)
    bias = floats("bias", (5, 6))
    config = dict(dim_feedforward=12, dropout=0.0, batch_first=True)
    attention = lambda: nn.MultiheadAttention(8, 2, batch_first=True)
    return {
        "conv1d": (nn.Conv1d(6, 4, 3, 2, 2, 2, groups=2), x(4, 6, 11), plain),
        "conv2d": (nn.Conv2d(6, 4, (3, 2), (2, 1), (1, 0), (1, 2), groups=2), image, plain),
        "conv_transpose2d": (nn.ConvTranspose2d(6, 4, 3, 2, 1, (1, 0), 2), image, plain),
        "batch_norm1d": (nn.BatchNorm1d(6), x(8, 6), plain),
        "batch_norm1d_of_sequences": (nn.BatchNorm1d(6), x(4, 6, 5), plain),
        "batch_norm2d": (nn.BatchNorm2d(6), image, plain),
        "group_norm": (nn.GroupNorm(3, 6), image, plain),
        "instance_norm": (nn.InstanceNorm2d(6), image, plain),
        "max_pool": (nn.MaxPool2d(3, 2, 1), image, plain),
        "max_pool_ceil": (nn.MaxPool2d(2, 2, 1, ceil_mode=True), x(4, 6, 8, 5), plain),
        "avg_pool": (nn.AvgPool2d(3, 2, 1), image, plain),
        "avg_pool_ceil": (nn.AvgPool2d(3, 2, 1, ceil_mode=True), x(4, 6, 8, 6), plain),
        "adaptive_pool": (nn.AdaptiveAvgPool2d((3, 2)), image, plain),
        "adaptive_pool_even": (nn.AdaptiveAvgPool2d((2, 3)), x(4, 6, 8, 6), plain),
        "upsample": (nn.Upsample(scale_factor=(2, 3)), image, plain),
        "attention": (attention(), sequence, lambda m, x: m(x, x, x)[0]),
        "attention_causal": (attention(), sequence, lambda m, x: m(x, x, x, attn_mask=causal)[0]),
        "attention_padded": (
            attention(),
            both,
            lambda m, x, memory: m(x, memory, memory, key_padding_mask=padding)[0],
        ),
        "attention_biased": (attention(), both, lambda m, x, memory: m(x, memory, memory, attn_mask=bias)[0]),
        "encoder": (nn.TransformerEncoderLayer(8, 2, **config), sequence, plain),
        "encoder_norm_first": (
            nn.TransformerEncoderLayer(8, 2, activation="gelu", norm_first=True, **config),
            sequence,
            lambda m, x: m(x, src_mask=causal),
        ),
        "decoder": (
            nn.TransformerDecoderLayer(8, 2, **config),
            both,
            lambda m, x, memory: m(x, memory, tgt_mask=causal, memory_key_padding_mask=padding),
        ),
        "lstm": (
            nn.LSTM(8, 3, 2, batch_first=True, bidirectional=True),
            sequence,
            lambda m, x: torch.cat([part.flatten() for part in (m(x)[0], *m(x)[1])]),
        ),
        "lstm_from": (
            nn.LSTM(8, 3, batch_first=True),
            {"x": (4, 5, 8), "h": (4, 3), "c": (4, 3)},
            lambda m, x, h, c: m(x, (h[None], c[None]))[0],
        ),
        "gru": (
            nn.GRU(8, 3, 2, batch_first=True, bidirectional=True),
            sequence,
            lambda m, x: torch.cat([part.flatten() for part in m(x)]),
        ),
    }


def layers():
    """Of each layer the mean of its result times numbers, and the norms of that mean's gradients, also by what goes in."""
    found = {}
    for name, (module, shapes, apply) in layer_cases().items():
        fill(module).train()
        operands = {of: weight(of, shape).requires_grad_() for of, shape in shapes.items()}
        y = apply(module, *operands.values())
        value = (y * floats("share", tuple(y.shape))).mean()
        value.backward()
        wanted = {**operands, **dict(module.named_parameters())}
        norms = rounded(of.grad.double().norm().item() for of in wanted.values())
        found[name] = {
            "shape": list(y.shape),
            "value": rounded([value.item()])[0],
            "gradients": dict(zip(wanted, norms)),
        }
    return found


class Statistics(nn.Module):
    """Batch norms of two momenta, one of which is applied twice."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8, momentum=0.3)
        self.conv3 = nn.Conv2d(8, 8, 1, bias=False)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = torch.tanh(self.bn1(self.conv1(x)))
        x = torch.tanh(self.bn2(self.conv2(x)))
        x = torch.tanh(self.bn2(self.conv3(x)))
        return self.fc(x.mean((2, 3)))


def statistics(microbatches):
    """Running statistics after 50 steps, and what they make of the first batch in evaluation."""
    model = fill(Statistics()).train()
    x, labels = floats("x", (40, 3, 8, 8), 0.5), classes("labels", (40,), 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(50):
        rows = [(step * 8 + i) % 40 for i in range(8)]
        optimizer.zero_grad()
        total = 0.0
        for part in range(microbatches):
            own = rows[part * 8 // microbatches : (part + 1) * 8 // microbatches]
            loss = F.cross_entropy(model(x[own]), labels[own]) / microbatches
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    running = {name: value for name, value in model.named_buffers() if "running" in name}
    model.eval()
    with torch.no_grad():
        logits = model(x[:8])
    return {
        "losses": rounded(losses),
        "running": {name: rounded(value.tolist()) for name, value in running.items()},
        "logits": rounded(logits.flatten().tolist()),
    }


class Images(nn.Module):
    """All that images pass through: convolution, batch norm, a maximum, a residual, a convolution of each channel, a product of
    what is left."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8)
        self.conv3 = nn.Conv2d(8, 12, 1)
        self.fc = nn.Linear(12 * 2 * 2, 4)

    def forward(self, x):
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = F.relu(x + self.bn2(self.conv2(x)))
        x = F.relu(self.conv3(self.depthwise(x)))
        return self.fc(x.flatten(1))


def images_trained(microbatches):
    """Losses of 12 steps of 8 images, and what becomes of the first of them."""
    model = fill(Images()).train()
    x, labels = floats("x", (40, 3, 8, 8), 0.5), classes("labels", (40,), 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for step in range(12):
        rows = [(step * 8 + i) % 40 for i in range(8)]
        optimizer.zero_grad()
        total = 0.0
        for part in range(microbatches):
            own = rows[part * 8 // microbatches : (part + 1) * 8 // microbatches]
            loss = F.cross_entropy(model(x[own]), labels[own]) / microbatches
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    model.eval()
    with torch.no_grad():
        logits = model(x[:8])
    return {"losses": rounded(losses), "logits": rounded(logits.flatten().tolist())}


def scheduled(optimizer):
    """Ten steps of warm-up, then a cosine to nothing at step 100."""
    schedulers = torch.optim.lr_scheduler
    parts = [schedulers.LinearLR(optimizer, 1 / 11, 1.0, 10), schedulers.CosineAnnealingLR(optimizer, 90)]
    return schedulers.SequentialLR(optimizer, parts, [10])


def curve(model, data, loss_of, make, batch, dtype=torch.float32):
    """Losses of 100 steps with a schedule and clipping, batch after batch."""
    fill(model).to(dtype).train()
    optimizer = make(model.parameters())
    scheduler = scheduled(optimizer)
    data = [part.to(dtype) if part.is_floating_point() else part for part in data]
    losses = []
    for step in range(100):
        rows = [(step * batch + i) % len(data[0]) for i in range(batch)]
        loss = loss_of(model, *(part[rows] for part in data))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def sgd(lr):
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=5e-4)


def adamw(lr):
    return lambda parameters: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01)


def patterned():
    """Images of ten classes that can be told apart."""
    x, labels = images(16, 48)
    return x + floats("patterns", (10, 3, 16, 16))[labels], labels


def curve_cases():
    """Models by name: how to make one, its data, loss, optimizer and rows of a batch."""
    from torchvision.models.resnet import BasicBlock
    from torchvision.models.vision_transformer import VisionTransformer

    vit = lambda: VisionTransformer(16, 4, 2, 2, 24, 48, num_classes=10)
    narrow = lambda: resnet(BasicBlock, [2, 2, 2, 2], 8, True)
    return {
        "resnet18": (narrow, patterned(), classified, sgd(0.002), 16),
        "vit": (vit, patterned(), classified, adamw(2e-3), 8),
        "gpt2": (Gpt2, tokens(40, 8, 40), next_tokens, adamw(3e-3), 8),
        "lstm_lm": (LstmLm, tokens(40, 7, 40), next_tokens, adamw(1e-2), 8),
    }


def moved(data, seed):
    """Images moved by a rounding or so; what is not an image stays as it is."""
    noise = torch.Generator().manual_seed(seed)
    move = lambda x: x * (1 + seed * 1e-7 * torch.randn(x.shape, generator=noise))
    return [move(part) if part.is_floating_point() else part for part in data]


def curves():
    """Losses of 100 steps in float32, and how far from those in float64 rounding alone takes them, as a share of the greatest: the
    farthest of four runs whose images differ by a rounding. Where rectifiers follow batch norms, that is more than 1e-4."""
    found = {}
    for name, (model, data, loss_of, make, batch) in curve_cases().items():
        runs = [curve(model(), moved(data, seed), loss_of, make, batch) for seed in range(4)]
        exact = curve(model(), data, loss_of, make, batch, torch.float64)
        noise = max(abs(a - b) for run in runs for a, b in zip(run, exact)) / max(exact)
        found[name] = {"losses": rounded(runs[0]), "noise": float(f"{noise:.2g}")}
    return found


CASES = {
    "curves": curves,
    "resnet18": resnet18,
    "resnet18_stem": resnet18_stem,
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "vit": vit,
    "gpt2": gpt2,
    "lstm_lm": lstm_lm,
    "layers": layers,
    "images": lambda: {str(parts): images_trained(parts) for parts in (1, 2)},
    "statistics": lambda: {str(parts): statistics(parts) for parts in (1, 2)},
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        (HERE / f"{name}.json").write_text(json.dumps(CASES[name](), indent=1) + "\n")
        print(name)
