"""Models as PyTorch exports them to ONNX: graphc computes what onnxruntime does, and trains as PyTorch does.

    cargo build --release --bin graphc
    python3 benchmarks/exports.py [--families | --others | --only gpt2 bert llama ..] [--meshes 1 2 2x2] [--keep DIR] [--export dynamo|plain|default] [--opset 17]

Each model is small, with random weights. It is exported by `torch.onnx.export`, run by `graphc run` on each mesh beside onnxruntime, and
trained by `graphc train` for some steps of SGD beside PyTorch in float32 and in float64. A line a model says which attentions, norms and activations
that were exported in parts are one op each; a line a model and mesh says how far outputs
are from onnxruntime's (as a share of the greatest), how far the first loss is from PyTorch's (as a share of it), and how far the
later ones are, in units of the distance between PyTorch's float32 and its float64. Exits with 1 where outputs are farther than 1e-4, a first
loss than 1e-5 (or than PyTorch's in float32, where that is more), or later ones than 20 such units, or where graphc refuses a model. One run
in float32 may be near by chance: before a loss is called missed, PyTorch trains in float32 from eight copies of the weights too, each moved by
a unit in the last place at most, and a loss that these miss by as much is no miss: the most of their first losses and the median of their later distances count, and the line
says so. `2p` trains two microbatches; one where samples meet, in batch norms or in an op that graphc names. Of `--export default` many are:
the exporter's optimizer folds batch norms and other parameters away, which the line says, and leaves out an addition of 1e-8 (`helium`, whose
norms have that epsilon: PyTorch's outputs are 1.6e-5 from onnxruntime's). `dinov3` places patches at random while PyTorch trains it. Needs torch, onnx, onnxscript, onnxruntime, safetensors; some models transformers, diffusers or
torchvision.
"""

import argparse
import copy
import functools
import inspect
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import nn
from torch.nn import functional as F

from exports_families import MODELS as FAMILIES
from exports_others import MODELS as OTHERS

ROOT = pathlib.Path(__file__).parent.parent
NEAR, FIRST, LATER = 1e-4, 1e-5, 20.0
# Of a loss; less than a few units in the last place of float32 is no distance.
LEAST = 2e-7
MOVED_RUNS = 8


class Logits(nn.Module):
    """The logits of a model of transformers."""

    def __init__(self, model, field="logits"):
        super().__init__()
        self.model, self.field = model, field

    def forward(self, ids, mask=None):
        more = {} if mask is None else {"attention_mask": mask}
        return self.model(input_ids=ids, **more)[self.field]


def ids(vocabulary, batch=4, time=16):
    return torch.randint(0, vocabulary, (batch, time))


def mask(batch=4, time=16):
    lengths = torch.tensor([time, time - 3, time - 1, time - 6])[:batch]
    return (torch.arange(time) < lengths[:, None]).long()


def images(size=32, batch=4):
    return torch.randn(batch, 3, size, size)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=96, n_positions=32, n_embd=32, n_layer=2, n_head=4, use_cache=False,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return Logits(GPT2LMHeadModel(config)), {"ids": ids(96)}


def gpt2_masked():
    model, inputs = gpt2()
    return model, {**inputs, "mask": mask()}


def llama(heads=2):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=heads, max_position_embeddings=32, use_cache=False)
    return Logits(LlamaForCausalLM(config)), {"ids": ids(96)}


def llama_masked():
    model, inputs = llama()
    return model, {**inputs, "mask": mask()}


def bert(masked=False):
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                        max_position_embeddings=32, num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    inputs = {"ids": ids(96), **({"mask": mask()} if masked else {})}
    return Logits(BertForSequenceClassification(config)), inputs


def bert_masked():
    return bert(True)


def bert_lm():
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return Logits(BertForMaskedLM(config)), {"ids": ids(96), "mask": mask()}


def distilbert():
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(vocab_size=96, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=32,
                              num_labels=5, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0)
    return Logits(DistilBertForSequenceClassification(config)), {"ids": ids(96), "mask": mask()}


def roberta():
    from transformers import RobertaConfig, RobertaForSequenceClassification

    config = RobertaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                           max_position_embeddings=40, num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return Logits(RobertaForSequenceClassification(config)), {"ids": ids(96), "mask": mask()}


def mistral():
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                           num_key_value_heads=2, max_position_embeddings=32, sliding_window=6, use_cache=False)
    return Logits(MistralForCausalLM(config)), {"ids": ids(96)}


def qwen2():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=32, use_cache=False)
    return Logits(Qwen2ForCausalLM(config)), {"ids": ids(96), "mask": mask()}


def t5():
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0)
    config._attn_implementation = "eager"

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.head = T5EncoderModel(config), nn.Linear(32, 5)

        def forward(self, ids, mask):
            return self.head(self.model(input_ids=ids, attention_mask=mask).last_hidden_state.mean(1))

    return Encoder(), {"ids": ids(96), "mask": mask()}


def gemma2():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    # The rows of padding are not trained in PyTorch, which an ONNX file does not say.
    config = Gemma2Config(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
                          num_key_value_heads=2, max_position_embeddings=32, sliding_window=6, use_cache=False, pad_token_id=None)
    return Logits(Gemma2ForCausalLM(config)), {"ids": ids(96)}


def deberta():
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = DebertaV2Config(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                             max_position_embeddings=32, num_labels=5, relative_attention=True, pos_att_type=["c2p", "p2c"],
                             position_buckets=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return Logits(DebertaV2ForSequenceClassification(config)), {"ids": ids(96), "mask": mask()}


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8,
                       num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

    class Classes(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = ViTForImageClassification(config)

        def forward(self, x):
            return self.model(pixel_values=x).logits

    return Classes(), {"x": images()}


class Experts(nn.Module):
    """Each token goes to the best two of four experts, which all are computed and weighed."""

    def __init__(self, width=16, experts=4, best=2, classes=5):
        super().__init__()
        self.embed = nn.Linear(12, width)
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)) for _ in range(experts))
        self.head = nn.Linear(width, classes)
        self.best = best

    def forward(self, x):
        h = self.embed(x)
        values, chosen = self.gate(h).topk(self.best, dim=-1)
        weights = torch.zeros_like(self.gate(h)).scatter(-1, chosen, values.softmax(-1))
        parts = torch.stack([expert(h) for expert in self.experts], -2)
        return self.head(h + (weights.unsqueeze(-1) * parts).sum(-2))


class GatheredExperts(Experts):
    """The same with the experts' results gathered by choice."""

    def forward(self, x):
        h = self.embed(x)
        values, chosen = self.gate(h).topk(self.best, dim=-1)
        parts = torch.stack([expert(h) for expert in self.experts], -2)
        taken = parts.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, parts.shape[-1]))
        return self.head(h + (values.softmax(-1).unsqueeze(-1) * taken).sum(-2))


def moe():
    return Experts(), {"x": torch.randn(8, 12)}


def moe_gathered():
    return GatheredExperts(), {"x": torch.randn(8, 12)}


def moe_tokens():
    return Experts(), {"x": torch.randn(4, 6, 12)}


def vgg():
    import torchvision

    model = torchvision.models.VGG(torchvision.models.vgg.make_layers([8, "M", 16, "M", 16, "M"]), num_classes=5, dropout=0.0)
    model.avgpool = nn.AdaptiveAvgPool2d(2)
    model.classifier = nn.Sequential(nn.Linear(64, 24), nn.ReLU(True), nn.Linear(24, 5))
    return model, {"x": images()}


def swin():
    import torchvision

    model = torchvision.models.SwinTransformer(patch_size=[2, 2], embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4],
                                               stochastic_depth_prob=0.0, num_classes=5)
    return model, {"x": images()}


def swin_v2():
    import torchvision
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

    model = torchvision.models.SwinTransformer(patch_size=[2, 2], embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4],
                                               stochastic_depth_prob=0.0, num_classes=5, block=SwinTransformerBlockV2,
                                               downsample_layer=PatchMergingV2)
    return model, {"x": images()}


class Encoder(nn.Module):
    """PyTorch's own encoder, whose layers begin alike, with sines for positions and images of tokens that are prepared by buffers."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.embed, self.head = nn.Linear(12, 32), nn.Linear(32, 5)
        angles = torch.arange(16)[:, None] * torch.exp(torch.arange(0, 32, 2) * -0.25)
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))
        self.register_buffer("middle", torch.randn(12))

    def forward(self, x):
        return self.head(self.encoder(self.embed(x - self.middle) + self.positions).mean(1))


def encoder():
    return Encoder(), {"x": torch.randn(4, 16, 12)}


class Indexing(nn.Module):
    """Run-time indices of all kinds."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(20, 12), nn.Linear(12, 5)

    def forward(self, ids, lengths):
        h = self.table(ids)
        rows = torch.arange(ids.shape[0])
        last = h[rows, lengths - 1]
        sums = h.cumsum(1)[rows, lengths - 1]
        picked = h.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, h.shape[-1])).squeeze(1)
        added = torch.zeros_like(h).index_put((rows, lengths - 1), last, accumulate=True).sum(1)
        return self.head(last + sums / 8 + picked * added)


def indexing():
    return Indexing(), {"ids": ids(20, 4, 8), "lengths": torch.tensor([8, 3, 1, 5])}


MODELS = [gpt2, llama, bert, moe, moe_gathered, moe_tokens, vgg, swin, gpt2_masked, llama_masked, bert_masked, bert_lm, distilbert,
          roberta, mistral, qwen2, gemma2, deberta, t5, vit, encoder, swin_v2, indexing]


def say_unpacked():
    """Tells decoders of transformers that no sequences are packed, as a mask does: else they ask by `torch.diff`, which the old exporter lacks."""
    try:
        from transformers import masking_utils
    except ImportError:
        return
    masking_utils.find_packed_sequence_indices = lambda position_ids: None


def export(model, inputs, path, args):
    how = args.export
    # The old exporter folds batch norms into convolutions and what is computed of weights into copies: both train otherwise.
    plain = {"dynamo": False, "do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE}
    options = {"dynamo": {"dynamo": True, "optimize": False}, "default": {"dynamo": True}, "plain": plain}[how]
    if args.dynamic and how != "plain":
        batch = torch.export.Dim("batch")
        shapes = tuple({0: batch} for _ in inputs)
        taken = inspect.signature(model.forward).parameters.values()
        options["dynamic_shapes"] = (shapes,) if any(p.kind is p.VAR_POSITIONAL for p in taken) else shapes
    if args.dynamic and how == "plain":
        options["dynamic_axes"] = {name: {0: "batch"} for name in [*inputs, "y"]}
    if args.opset:
        options["opset_version"] = args.opset
    names = {"input_names": list(inputs), "output_names": ["y"]}
    torch.onnx.export(model, tuple(inputs.values()), str(path), verbose=False, external_data=False, **names, **options)


def graphc(args, *command):
    done = subprocess.run([args.graphc, *map(str, command)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[max(done.stderr.rfind("error:"), 0):].strip())
    return done


def relative(found, expected):
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30))


def loss_of(y, labels):
    if y.ndim == 4:  # classes of each place of an image
        return F.cross_entropy(y, labels)
    return F.cross_entropy(y.reshape(-1, y.shape[-1]), labels.reshape(-1))


def labels_of(y):
    """Random labels of scores: of images [n, classes, h, w], of all else [.., classes]."""
    if y.ndim == 4:
        return torch.randint(0, y.shape[1], (y.shape[0], *y.shape[2:]))
    return torch.randint(0, y.shape[-1], y.shape[:-1])


def disturb(model):
    """Makes no parameter 0 or 1 throughout: the exporter's optimizer leaves out what such a bias or scale does, so that nobody can train it."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > 1 and (parameter == parameter.flatten()[0]).all():
                parameter += 0.02 * torch.randn_like(parameter)


def train_torch(model, inputs, labels, steps, lr, dtype):
    """The losses of steps of SGD on one batch."""
    model = copy.deepcopy(model).to(dtype).train()
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in inputs.values()]
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        loss = loss_of(model(*inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def move_weights(model, seed):
    """A copy whose weights are each moved by a unit in the last place, up, down or not at all."""
    generator = torch.Generator().manual_seed(seed)
    model = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + (torch.randint(0, 3, p.shape, generator=generator) - 1) * torch.finfo(torch.float32).eps)
    return model


def ranks(mesh, microbatches=1):
    """Options of a mesh; of `2p` those of two stages, with so many microbatches."""
    if not mesh.endswith("p"):
        return ["--mesh", mesh]
    return ["--mesh", mesh[:-1], "--stages", mesh[:-1], *(["--microbatches", microbatches] if microbatches > 1 else [])]


def held_weights(graph):
    """The names of initializers, and of the parameters of which the exporter's optimizer has made them."""
    names = {tensor.name for tensor in graph.initializer}
    made = [entry for value in graph.value_info if value.name in names for entry in value.metadata_props if entry.key.endswith("folded_from")]
    return names | {part.strip("'") for entry in made for part in entry.value.strip("[]").split(", ")}


class Case:
    """A model, its file and data, and what others make of it."""

    def __init__(self, args, build, folder):
        import onnx
        import onnxruntime

        onnxruntime.set_default_logger_severity(3)
        torch.manual_seed(0)
        model, self.inputs = build()
        if args.export == "default" and not args.fresh:
            disturb(model)
        self.model, self.args, self.folder = model.eval(), args, folder / build.__name__
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "model.onnx"
        # What is traced may keep tensors of the trace.
        export(copy.deepcopy(self.model), self.inputs, self.path, args)
        feeds = {name: x.numpy() for name, x in self.inputs.items()}
        session = onnxruntime.InferenceSession(str(self.path), providers=["CPUExecutionProvider"])
        taken = {i.name for i in session.get_inputs()}
        self.y = session.run(None, {name: x for name, x in feeds.items() if name in taken})[0]
        self.labels = labels_of(self.y)
        save_file({name: np.ascontiguousarray(x) for name, x in feeds.items()}, self.folder / "inputs.safetensors")
        save_file({**feeds, "labels": self.labels.numpy()}, self.folder / "data.safetensors")
        held = held_weights(onnx.load(str(self.path)).graph)
        frozen = [name for name, p in self.model.named_parameters() if not p.requires_grad and name in held]
        self.frozen = [part for name in frozen for part in ("--freeze", name)]
        # Batch norms of microbatches have statistics of their own.
        self.microbatches = 1 if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules()) else 2
        self.batch = ["--batch", next(iter(self.inputs.values())).shape[0]] if args.dynamic else []
        self.losses, self.exact = self.train_torch(self.model, torch.float32), self.train_torch(self.model, torch.float64)

    def train_torch(self, model, dtype):
        return train_torch(model, self.inputs, self.labels, self.args.steps, self.args.lr, dtype)

    @functools.cached_property
    def moved(self):
        """Distances to the exact losses, as a share of them, of float32 trainings from weights that are moved by an ulp: `[run, step]`."""
        losses = np.array([self.train_torch(move_weights(self.model, seed), torch.float32) for seed in range(MOVED_RUNS)])
        return np.abs(losses - self.exact) / np.abs(self.exact)

    def fused(self):
        """What graphc says of attentions and functions in parts that it has made one op each; empty where there are none or it refuses the model."""
        plan = self.folder / "plan.json"
        try:
            graphc(self.args, "compile", self.path, "-o", plan, *self.batch)
            said = graphc(self.args, "inspect", plan).stdout
        except RuntimeError:
            return ""
        lines = said.splitlines()
        return "; ".join(text for text in lines if text.startswith(("attention:", "functions in parts:", "  in parts")))

    def run(self, mesh):
        outputs = self.folder / "outputs.safetensors"
        graphc(self.args, "run", self.path, "--inputs", self.folder / "inputs.safetensors", "--outputs", outputs, *ranks(mesh), *self.batch)
        return relative(load_file(outputs)["y"], self.y)

    def train(self, mesh):
        metrics = self.folder / "losses.jsonl"
        metrics.unlink(missing_ok=True)
        try:
            done = graphc(self.args, *self.training(mesh), "--metrics", metrics)
        except RuntimeError as error:
            if self.microbatches == 1 or "microbatches" not in str(error):
                raise
            self.microbatches = 1
            done = graphc(self.args, *self.training(mesh), "--metrics", metrics)
        self.lost = lost_parameters(done.stderr)
        found = np.array([json.loads(line)["loss"] for line in metrics.read_text().splitlines()])
        scale = np.abs(self.exact)
        first, own = (abs(losses[0] - self.exact[0]) / scale[0] for losses in (found, self.losses))
        self.unit = max(np.max(np.abs(self.losses - self.exact) / scale), LEAST)
        return first, max(own, FIRST), np.max(np.abs(found - self.exact) / scale) / self.unit

    def training(self, mesh):
        return ["train", self.path, "--data", self.folder / "data.safetensors", "--steps", self.args.steps, "--loss", "cross_entropy",
                "--optimizer", "sgd", "--lr", self.args.lr, *ranks(mesh, self.microbatches), *self.batch, *self.frozen]


def lost_parameters(said):
    """What graphc says of parameters that the exporter has left out or computed with, which no training of the file reaches; empty if there are none."""
    return "; ".join(re.findall(r"\d+ parameters? (?:was|were|is|are) (?:computed with|not in the file)", said))


def line(case, mesh):
    """One mesh of a model; whether all is near enough."""
    try:
        distance = case.run(mesh)
        first, most, later = case.train(mesh)
    except RuntimeError as error:
        print(f"{case.folder.name:14} {mesh:4} REFUSED {str(error)[:700]}", flush=True)
        return False
    notes = ["one microbatch"] if mesh.endswith("p") and case.microbatches == 1 else []
    if first > most or later > LATER:
        moved_first, moved_later = np.max(case.moved[:, 0]), np.median(np.max(case.moved, axis=1)) / case.unit
        notes.append(f"weights moved by an ulp: {moved_first:.1e} and {moved_later:.1f} units")
        most, later_most = max(most, moved_first), LATER * max(moved_later, 1.0)
    else:
        later_most = LATER
    ok = distance <= NEAR and first <= most and later <= later_most
    text = f"outputs {distance:.1e}  first loss {first:.1e}  later {later:5.2f} units  losses {case.losses[0]:.4f} to {case.losses[-1]:.4f}"
    notes += [case.lost] if case.lost and not ok else []
    said = f" ({'; '.join(notes)})" if notes else ""
    print(f"{case.folder.name:14} {mesh:4} {text}{'' if ok else '  MISSED'}{said}", flush=True)
    return ok


def model(args, build, folder):
    """Whether a model is near enough on each mesh; none where PyTorch's exporter or onnxruntime fails."""
    try:
        case = Case(args, build, folder)
    except Exception as error:  # whatever an exporter raises
        print(f"{build.__name__:14}      not exported: {str(error).splitlines()[0][:200]}", flush=True)
        return None
    fused = case.fused()
    if fused:
        print(f"{build.__name__:14}      {fused}", flush=True)
    return all([line(case, mesh) for mesh in args.meshes])


def choose_models(args):
    if args.only:
        return [build for build in MODELS + FAMILIES + OTHERS if build.__name__ in args.only]
    return OTHERS if args.others else MODELS + (FAMILIES if args.families else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="these models; else those of this file")
    parser.add_argument("--families", action="store_true", help="those of exports_families.py too")
    parser.add_argument("--others", action="store_true", help="those of exports_others.py alone")
    parser.add_argument("--meshes", nargs="+", default=["1", "2", "2x2"], help="2p: two stages, in training with two microbatches")
    parser.add_argument("--export", choices=["dynamo", "default", "plain"], default="dynamo")
    parser.add_argument("--opset", type=int, help="the version of ONNX's ops; else the exporter's own choice")
    parser.add_argument("--dynamic", action="store_true", help="with a symbolic first dim")
    parser.add_argument("--fresh", action="store_true", help="with the default export too, weights as modules begin: many of zeros or ones")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--keep", type=pathlib.Path, help="where the models and data are left")
    parser.add_argument("--graphc", default=str(ROOT / "target/release/graphc"))
    args = parser.parse_args()
    if unknown := set(args.only or []) - {build.__name__ for build in MODELS + FAMILIES + OTHERS}:
        parser.error(f"no model is called {', '.join(sorted(unknown))}")
    warnings.simplefilter("ignore")
    if args.export == "plain":
        say_unpacked()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or pathlib.Path(scratch)
        chosen = choose_models(args)
        ok = [model(args, build, folder) for build in chosen]
    exported = [near for near in ok if near is not None]
    failed = f"; {len(ok) - len(exported)} others PyTorch does not export or onnxruntime does not run" if len(exported) < len(ok) else ""
    print(f"{sum(exported)} of {len(exported)} exported models are near enough on {', '.join(args.meshes)}{failed}")
    sys.exit(0 if exported and all(exported) else 1)


if __name__ == "__main__":
    main()
