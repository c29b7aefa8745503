"""Names of PyTorch, NumPy and TensorFlow, and the equivalents here: one table.

Its rows are the tables of docs/dynet-cy-for-pytorch-users.md, and what errors say where a program uses a name that
this library does not have, such as `dy.nn.ReLU`, `x.exp()`, `trainer.step()` or `lr=`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple, NoReturn, TypeVar

Self = TypeVar("Self", bound="KnownArguments")


class Row(NamedTuple):
    """A row of the tables. Names that lead to it are separated by spaces, by what has no such attribute here."""

    theirs: str
    """The code in the other library."""
    ours: str
    """What to write here. Errors say this, with the name in place of ``{}``, unless `says` has something else."""
    dy: str = ""
    """Names of the module. They are attributes of it, whose use is an error (see the end of ``__init__.py``); so none
    is the name of a builtin function or type, which code and annotations in the module mean."""
    nn: str = ""
    """Names of the module `nn`."""
    x: str = ""
    """Attributes of expressions."""
    trainer: str = ""
    """Attributes of trainers."""
    keyword: str = ""
    """Arguments of constructors of trainers."""
    argument: str = ""
    """Arguments of functions, and of constructors of layers and builders. Where what errors say has arguments of ours,
    such as `d=`, they name those that the function has, and nothing where it has none of them."""
    text: str = ""
    """Arguments of functions and methods of pretrained models, in `transformers`."""
    missing: str = ""
    """Functions and layers that are called without an argument that has a default there and none here."""
    layer: str = ""
    """Attributes of layers and of builders of recurrent networks."""
    model: str = ""
    """Attributes of collections of parameters."""
    state: str = ""
    """Attributes of states of recurrent networks."""
    activation: str = ""
    """Names of activations of layers."""
    numpy: str = ""
    """Functions of NumPy, without `numpy.`."""
    torch: str = ""
    """Names of PyTorch under which this library has something similar, so that only `dynet_cy.port` says them."""
    says: str = ""
    """The text of the error, where the page says more, or something general."""


FUNCTIONS = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh cumsum elu erf exp expm1 floor gelu inverse lgamma log log1p "
    "log_softmax logdet norm prod round selu sin sinh softmax softplus sort sqrt square tan tanh transpose relu sigmoid"
)

# fmt: off
GENERAL = (
    Row("`nn.Parameter(torch.empty(m, n))`", "`pc.add_parameters((m, n))` (Glorot; `init=` a number or an initializer)",
        dy="Parameter", nn="Parameter", says="`pc.add_parameters((m, n))`, with a `dy.ParameterCollection`"),
    Row("`nn.Module.register_parameter`", "`pc.add_parameters`",
        model="add_parameter register_parameter", layer="register_parameter",
        says="`add_parameters(shape)` of a collection"),
    Row("`model.parameters()`",
        "`pc.parameters_list()`, or `parameters()` of a layer; a trainer takes the collection or the layer itself",
        model="parameters",
        says="the collection or the layer itself where a trainer takes it, `dy.AdamTrainer(pc)`; lists are "
        "`parameters_list()` and `lookup_parameters_list()` of a collection, and `parameters()` of a layer"),
    Row("`nn.Embedding(v, n)`, `emb(i)`",
        "`pc.add_lookup_parameters((v, n))`, `emb[i]`; a batch: `dy.lookup_batch(emb, ids)`",
        dy="Embedding", says="`pc.add_lookup_parameters((v, n))`, or the layer `dy.nn.Embedding`"),
    Row("`nn.Linear(n, m)`", "`dy.affine_transform([b, W, x])`, or `W * x + b`", dy="Linear linear",
        says="`W * x + b`, or the layer `dy.nn.Linear`"),
    Row("`nn.LSTM`, `nn.LSTMCell`",
        "`dy.nn.LSTM(n, m, pc)` of a matrix with a column for each position, which returns only the outputs; step by "
        "step: `dy.LSTMBuilder`",
        dy="LSTM LSTMCell", nn="LSTMCell"),
    Row("`nn.GRU`, `nn.GRUCell`", "`dy.nn.GRU(n, m, pc)`, only the outputs; step by step: `dy.GRUBuilder`",
        dy="GRU GRUCell", nn="GRUCell"),
    Row("`nn.RNN`, `nn.RNNCell`", "`dy.nn.RNN(n, m, pc)`, only the outputs; step by step: `dy.SimpleRNNBuilder`",
        dy="RNN RNNCell", nn="RNNCell"),
    Row("a step of a cell, `h, c = cell(x, (h, c))`",
        "`state = state.add_input(x)`, `state.output()`; you can continue any state, more than once",
        state="forward step hidden", says="`state = state.add_input(x)`, then `state.output()`"),
    Row("`nn.Conv2d`",
        "`dy.nn.Conv2d`, or `dy.conv2d(x, F, stride=[1, 1], dilation=[1, 1], groups=1)` with x (rows, columns, "
        "channels)", dy="Conv2d", says="`dy.nn.Conv2d`, or `dy.conv2d(x, F, stride=[1, 1])`"),
    Row("`nn.ConvTranspose2d`, `nn.AvgPool2d`, `F.avg_pool2d`",
        "`dy.nn.ConvTranspose2d`, `dy.nn.AvgPool2d`, `dy.avgpooling2d`", dy="avg_pool2d", says="`dy.avgpooling2d`"),
    Row("`nn.MaxPool2d`, `F.max_pool2d`", "`dy.nn.MaxPool2d`, `dy.maxpooling2d`", dy="max_pool2d",
        says="`dy.maxpooling2d`"),
    Row("`F.adaptive_avg_pool2d`, `F.adaptive_max_pool2d`",
        "`dy.adaptive_avgpooling2d`, `dy.adaptive_maxpooling2d`; for one window, `dy.nn.GlobalAvgPool2d`",
        dy="adaptive_avg_pool2d adaptive_max_pool2d", nn="AdaptiveAvgPool2d AdaptiveMaxPool2d"),
    Row("`F.batch_norm`", "`dy.batch_norm`, or `dy.nn.BatchNorm`", nn="BatchNorm1d BatchNorm2d BatchNorm3d"),
    Row("`F.layer_norm`", "`dy.layer_norm(x, g, b)`, or `dy.nn.LayerNorm`", dy="LayerNorm"),
    Row("`torch.tensor(v)`, `torch.from_numpy(v)`",
        "`dy.inputTensor(v)`, `dy.inputVector(v)`, `dy.scalarInput(s)`",
        dy="tensor from_numpy as_tensor"),
    Row("`a @ b`, `a * b`, `a / b`",
        "`a @ b` (or `a * b`), `dy.cmult(a, b)`, `a / b`; shapes broadcast from the first axis on, see "
        "[tensors.md](tensors.md)", dy="mm mv dot", x="matmul mm mv dot", says="`a @ b`"),
    Row("`torch.mul(a, b)`, `a.mul(b)`", "`dy.cmult(a, b)`, element by element; `a * b` is the matrix product",
        dy="mul", x="mul multiply"),
    Row("`a.add(b)`, `a.sub(b)`, `a.div(b)`", "the operators `a + b`, `a - b`, `a / b`", dy="add sub div",
        x="add sub div subtract divide"),
    Row("`torch.bmm`, `torch.einsum`", "`a @ b` with the matrices along the first two axes, `dy.einsum`", dy="bmm",
        x="bmm", says="`a @ b`, with the matrices along the first two axes"),
    Row("`torch.cat([a, b])`", "`dy.cat([a, b])` (also `dy.concatenate`); other axes: `d=1`"),
    Row("`torch.stack([a, b], 1)`", "`dy.stack([a, b], 1)`"),
    Row("`x.chunk(n)`, `torch.split`", "`dy.split(x, sizes)`", dy="chunk unbind", x="chunk unbind"),
    Row("`x[i]`, `x[a:b]`, `x[[0, 2]]`, `x[:, None]`",
        "the same; indices that differ in the batch: `dy.pick_batch(x, ids)`", dy="narrow index_select",
        x="narrow index_select", says="an index: `x[a:b]`, `x[[0, 2]]`"),
    Row("`x > 0`, `torch.where`, `masked_fill`", "`x > 0`, `dy.where`, `dy.masked_fill`", dy="gt lt ge le eq",
        x="gt lt ge le eq", says="a comparison, `x > 0`, or `dy.equal(x, y)`"),
    Row("`torch.gather`, `scatter_add`, `index_add`, `sort`, `topk`",
        "`dy.gather`, `dy.scatter_add`, `dy.index_add`, `dy.sort`, `dy.topk`",
        x="gather greater less not_equal pow scatter scatter_add split topk where",
        says="`dy.{}(x, ...)`, with its other arguments"),
    Row("`x.masked_fill(mask, v)`", "`dy.masked_fill(x, mask, v)`", x="masked_fill"),
    Row("`x.max(1).values`, `x.max(1).indices`", "`x.max(1)`, which has no positions: `dy.argmax(x, d=1)`",
        x="values indices"),
    Row("`torch.where(c, x, y)`",
        "`dy.where(c, x, y)`; shapes broadcast from the first axis on; of one argument: `np.nonzero(c.npvalue())`",
        torch="where"),
    Row("`x.exp()`, `x.tanh()`, `x.softmax(0)`", "functions: `dy.exp(x)`, `dy.tanh(x)`, `dy.softmax(x)`", x=FUNCTIONS,
        says="`dy.{}(x)`"),
    Row("`torch.flatten(x, 1)`, `nn.Flatten()`",
        "`dy.nn.Flatten()(x)`, in PyTorch's order of an image {h,w,channels}: "
        "`dy.transpose(x, [2, 0, 1]).reshape((n,), order=\"C\")`", dy="flatten", x="flatten"),
    Row("`x.view(-1, n)`", "`x.reshape(-1, n)` (column-major)", dy="view", x="view ravel reshape_as resize",
        says="`x.reshape(-1, n)`, which goes by columns (column-major), unlike `view`"),
    Row("`x.permute(1, 0, 2)`", "`dy.transpose(x, [1, 0, 2])`", dy="permute", x="permute swapaxes"),
    Row("`x.t()`", "`x.T`", dy="t", x="t mT"),
    Row("`x.unsqueeze(1)`, `x.squeeze(1)`", "`x[:, None]`, `x[:, 0]`", dy="unsqueeze squeeze",
        x="unsqueeze squeeze"),
    Row("`x.expand(n, m)`, `x.repeat(n)`", "nothing: shapes broadcast from the first axis on",
        dy="repeat", x="expand expand_as repeat tile"),
    Row("`x.shape`, `x.size(0)`, `x.ndim`", "`x.shape` (without the batch, which is `x.batch_size`), `len(x.shape)`",
        x="ndim size rank", says="`x.shape`, without the batch, or `len(x.shape)`; the batch is `x.batch_size`"),
    Row("`x.numel()`", "`math.prod(x.shape)`", dy="numel", x="numel nelement"),
    Row("`x.sum()`, `x.sum(d)`", "`x.sum()`, `x.sum(d)`"),
    Row("`sum(xs)`", "`dy.esum(xs)`"),
    Row("`torch.mean(x)`, `torch.max(x)`, `torch.min(x)`", "`x.mean()`, `x.max()`, `x.min()`",
        dy="mean amax amin", x="amax amin"),
    Row("`torch.argmax(x)`",
        "`dy.argmax(x)`, a position; `dy.argmax(x, \"zero_gradient\")` is a vector with a 1 there", x="argmax",
        says="`dy.argmax(x)`"),
    Row("`torch.maximum(a, b)`, `torch.minimum(a, b)`", "`dy.bmax(a, b)`, `dy.bmin(a, b)`", dy="maximum minimum",
        x="maximum minimum"),
    Row("`x.std()`, `x.var()`", "`dy.std_elems(x)`, `dy.std_dim(x, [0], False)`; variance: its square", dy="std var",
        x="std var"),
    Row("`torch.logsumexp(x, 0)`", "`dy.logsumexp_dim(x, 0)`; of a list of expressions: `dy.logsumexp(xs)`",
        x="logsumexp"),
    Row("`torch.clamp(x, a, b)`", "`dy.clip(x, a, b)`", dy="clamp", x="clamp clip"),
    Row("`torch.relu`, `torch.sigmoid`, `torch.tanh`",
        "`dy.relu` (also `dy.rectify`), `dy.sigmoid` (`dy.logistic`), `dy.tanh`"),
    Row("`F.gelu(x, approximate=\"tanh\")`; in `transformers`, `gelu_new`, `gelu_pytorch_tanh`, `quick_gelu`",
        "`dy.gelu(x, \"tanh\")`; the same twice, `dy.silu(x, 1.702)`; layers take all three names as activations",
        dy="gelu_new gelu_pytorch_tanh quick_gelu",
        says="`dy.gelu(x, \"tanh\")`, or `dy.silu(x, 1.702)` for quick_gelu"),
    Row("`F.silu`, `swish`", "`dy.silu`", dy="swish SiLU", activation="swish SiLU", says="`silu`"),
    Row("`F.logsigmoid`, `F.hardtanh`, `F.hardswish`", "`dy.log_sigmoid`, `dy.hard_tanh`, `dy.hard_swish`",
        dy="logsigmoid hardtanh hardswish", activation="logsigmoid",
        says="`log_sigmoid`, `hard_tanh` or `hard_swish`"),
    Row("`F.softmax(x, 0)`, `F.log_softmax(x, 0)`",
        "`dy.softmax(x)`, `dy.log_softmax(x)`; `mask=` for what does not count"),
    Row("`F.cross_entropy(x[None], torch.tensor([i]))`",
        "`dy.pickneglogsoftmax(x, i)`; columns, label smoothing, `ignore_index`: `dy.cross_entropy(x, ids)`",
        dy="CrossEntropyLoss", nn="CrossEntropyLoss",
        says="`dy.pickneglogsoftmax(x, i)`, or `dy.cross_entropy(x, ids)`"),
    Row("`F.nll_loss` of log-probabilities", "`-dy.pick(x, i)`", dy="nll_loss", nn="NLLLoss"),
    Row("`F.scaled_dot_product_attention`",
        "`dy.scaled_dot_product_attention`: all heads below each other, no padding"),
    Row("`F.ctc_loss`, a CRF of another package", "`dy.ctc_loss`, `dy.crf_loss`, `dy.crf_viterbi`", nn="CTCLoss"),
    Row("`F.binary_cross_entropy(p, y, reduction=\"sum\")`", "`dy.binary_log_loss(p, y)`",
        dy="binary_cross_entropy bce_loss", nn="BCELoss"),
    Row("`F.binary_cross_entropy_with_logits(x, y)`",
        "`dy.binary_cross_entropy_with_logits(x, y)`, with `reduction=` as there",
        dy="bce_with_logits sigmoid_cross_entropy_with_logits", nn="BCEWithLogitsLoss",
        says="`dy.binary_cross_entropy_with_logits(x, y)`"),
    Row("`F.mse_loss(reduction=\"sum\")`", "`dy.squared_distance(x, y)`", dy="mse_loss", nn="MSELoss"),
    Row("`F.l1_loss(reduction=\"sum\")`, `F.smooth_l1_loss`", "`dy.l1_distance(x, y)`, `dy.huber_distance(x, y)`",
        dy="l1_loss smooth_l1_loss huber_loss", nn="L1Loss SmoothL1Loss HuberLoss"),
    Row("`F.kl_div`", "`dy.kl_divergence`", dy="kl_div", nn="KLDivLoss"),
    Row("`F.dropout(x, p)`", "`dy.dropout(x, p)`; the layer: `nn.Dropout(p)`", dy="Dropout", nn="Dropout1d Dropout2d",
        says="`dy.dropout(x, p)`, or the layer `dy.nn.Dropout(p)`"),
    Row("`torch.randn(n)` within the graph", "`dy.random_normal((n,))`", dy="randn normal"),
    Row("`torch.rand(n)` within the graph", "`dy.random_uniform((n,), 0, 1)`", dy="rand uniform"),
    Row("`x.item()`", "`x.item()`, `x.value()`"),
    Row("`x.numpy()`, `x.tolist()`", "`x.npvalue()`, `x.vec_value()`", x="numpy tolist data array"),
    Row("`x.detach()`, `x.clone()`", "`dy.nobackprop(x)`; a number computed from `x.value()`",
        dy="detach", x="detach clone detach_", says="`dy.nobackprop(x)`; for the numbers, `x.npvalue()`"),
    Row("`x.grad`", "`x.gradient()`; of a parameter: `p.grad_as_array()`", dy="grad", x="grad",
        says="`x.gradient()` after `loss.backward(full=True)`; of a parameter `p.grad_as_array()`"),
    Row("`torch.autograd.grad(loss, xs, create_graph=True)`", "`dy.gradients(loss, xs)`", dy="autograd",
        says="`dy.gradients(loss, xs)` for gradients as expressions, or `loss.backward()`"),
    Row("`torch.autograd.functional.hvp(f, x, v)`", "`dy.hessian_vector_product(loss, x, v)`", dy="hvp vhp hessian"),
    Row("`torch.utils.checkpoint.checkpoint(f, x)`",
        "`dy.checkpoint(f, x)`; also around a whole network ([checkpoints](memory.md#checkpoints))"),
    Row("`torch.no_grad()`",
        "nothing; `renew_cg(forward_only=True)` also drops values that are no longer needed. "
        "Neither switches dropout off",
        dy="no_grad inference_mode set_grad_enabled enable_grad",
        says="nothing: without `backward()` there is no extra cost, and `dy.renew_cg(forward_only=True)` also drops "
        "values that are no longer needed"),
    Row("`p.requires_grad_(False)`",
        "`p.set_updated(False)`, also of a layer: no gradient, no clipping, no decay; in one graph: "
        "`dy.const_parameter(p)`", x="requires_grad requires_grad_ is_leaf", layer="requires_grad_",
        says="`set_updated(False)` of a parameter or a layer, or `dy.nobackprop(x)`"),
    Row("`torch.optim.SGD`", "`dy.SimpleSGDTrainer`; with momentum: `dy.MomentumSGDTrainer`", dy="SGD", nn="SGD"),
    Row("`torch.optim.Adam`, `AdamW`, ...", "`dy.AdamTrainer`, `dy.AdamWTrainer`, ...",
        dy="Adam AdamW Adagrad Adadelta RMSprop RMSProp", says="`dy.{}Trainer`"),
    Row("`torch.optim`", "`dy.SimpleSGDTrainer`, `dy.AdamTrainer`, `dy.AdamWTrainer` and others", dy="optim"),
    Row("`Adam(ps, lr=r)`", "`dy.AdamTrainer(pc, learning_rate=r)`, and so for other trainers", keyword="lr",
        trainer="lr", says="`learning_rate` (`AdadeltaTrainer` has none, `CyclicalSGDTrainer` has two bounds)"),
    Row("`Adam(ps, betas=(b1, b2))`", "`dy.AdamTrainer(pc, beta_1=b1, beta_2=b2)`", keyword="betas"),
    Row("`SGD(ps, momentum=m)`", "`dy.MomentumSGDTrainer(pc, mom=m)`", keyword="momentum nesterov"),
    Row("`SGD(ps, lr=r, weight_decay=d)`", "`trainer.group(pc, weight_decay=d)`, or `pc.set_weight_decay(d * r)`",
        keyword="weight_decay",
        says="`trainer.group(pc, weight_decay=d)`, or `pc.set_weight_decay(d * r)`; for PyTorch's `Adam`, whose decay "
        "is part of the gradient, `0.5 * d * dy.squared_norm(W)` in the loss"),
    Row("`Adam(ps, amsgrad=True)`", "`dy.AmsgradTrainer(pc)`", keyword="amsgrad"),
    Row("`[{\"params\": ps, \"lr\": r, \"weight_decay\": 0}, ...]`",
        "`trainer.group(ps, learning_rate=r, weight_decay=0)`, which can be changed later", keyword="params",
        trainer="add_param_group", says="`trainer.group(parameters, learning_rate=r)`"),
    Row("`for g in optimizer.param_groups: g[\"lr\"] *= 0.5`",
        "`trainer.learning_rate *= 0.5`; `for g in trainer.groups: ...`", trainer="param_groups"),
    Row("`torch.optim.lr_scheduler`, `scheduler.step()`",
        "`trainer.schedule = dy.CosineSchedule(n)`, `dy.LinearSchedule(n)` and others; nothing to call",
        dy="lr_scheduler",
        says="a schedule of the trainer, such as `trainer.schedule = dy.CosineSchedule(n)`; there is no `step()` to "
        "call"),
    Row("`CosineAnnealingLR(optimizer, n)`", "`trainer.schedule = dy.CosineSchedule(n)`", dy="CosineAnnealingLR"),
    Row("`StepLR(optimizer, n)`, `MultiStepLR`", "`trainer.schedule = dy.StepSchedule(n)`, of a number or a list",
        dy="StepLR MultiStepLR"),
    Row("`LinearLR(optimizer, 1, 0, n)`", "`trainer.schedule = dy.LinearSchedule(n)`", dy="LinearLR",
        says="`trainer.schedule = dy.LinearSchedule(n)` down, `dy.WarmupSchedule(n)` up"),
    Row("`optimizer.zero_grad()` after a bad batch", "`trainer.zero_gradients()`", trainer="zero_grad",
        model="zero_grad", x="zero_grad zero_", layer="zero_grad",
        says="nothing, as `trainer.update()` clears gradients; after a bad batch, `trainer.zero_gradients()`"),
    Row("`scaler.step(optimizer)` (drops steps that are not finite)",
        "`trainer.update(skip_nonfinite=True)`; `trainer.status()` counts them"),
    Row("`optimizer.step(); optimizer.zero_grad()`", "`trainer.update()`", trainer="step",
        model="step", says="`trainer.update()`, after `loss.backward()`; it also clears the gradients"),
    Row("`norm = clip_grad_norm_(parameters, c)`",
        "`trainer.set_clip_threshold(c)`, once; `trainer.gradient_norm` after an update",
        dy="clip_grad_norm_"),
    Row("`torch.save(model.state_dict(), f)`, `load_state_dict`",
        "`pc.save(f)`, `pc.populate(f)`; `pc.state_dict()`, `pc.load_state_dict(arrays, strict=False)`",
        torch="save load", says="`pc.save(f)` and `pc.populate(f)`, or `dy.save_safetensors(f, pc, trainer)` and "
        "`dy.load_safetensors(f, pc, trainer)`, which also keep the trainer"),
    Row("`torch.autocast(device)`, `GradScaler()`", "nothing: `--dynet-precision bf16` on the command line, see "
        "[performance.md](performance.md)", dy="autocast GradScaler amp",
        says="nothing: `--dynet-precision bf16` on the command line computes products of weights in bfloat16, "
        "without scaling"),
    Row("`model.load(f)`, `model.load_weights(f)`",
        "`pc.populate(f)` of a file of `pc.save(f)`; `dy.load(f, pc)` of those of `dy.save(f, ...)`",
        model="load load_weights load_from_disk from_disk restore",
        says="`populate` of a file that `save` of a collection has written, `dy.load(name, collection)` of those of "
        "`dy.save`, or `dy.load_safetensors(file, collection)`"),
    Row("`optimizer.state_dict()`", "`dy.save_safetensors(f, pc, trainer)`, `dy.load_safetensors(f, pc, trainer)`",
        trainer="state_dict load_state_dict"),
    Row("`torch.manual_seed(s)`", "`dynet_cy.config.set(random_seed=s)`", dy="manual_seed"),
    Row("`pack_padded_sequence`, masks, `ignore_index`", "nothing, with automatic batching",
        dy="pack_padded_sequence pad_sequence", nn="utils", says="nothing: sentences of different lengths need no "
        "padding, as automatic batching joins their nodes"),
    Row("`x.to(device)`, `x.cuda()`", "nothing: `--dynet-gpu` runs the program on a GPU; several: `dy.to_device`",
        dy="device cuda set_default_device", x="to cpu cuda device", model="to cuda cpu", layer="to cuda cpu",
        says="nothing: `--dynet-gpu` runs the same program on a GPU; in graphs over several devices, "
        "`dy.to_device`"),
    Row("`x.float()`, `x.double()`, `x.long()`", "nothing: numbers are float32, indices int32 (`x.dtype`)",
        dy="float32 float64 double long int64 dtype", x="type float double half long int astype",
        layer="float double half",
        says="nothing: numbers are float32, indices int32, and `x.npvalue()` gives float64"),
    Row("`x.add_(y)`, `x.fill_(0)`, `x[0] = y`", "`x + y` and so on, which make new expressions",
        x="add_ sub_ mul_ div_ fill_ copy_ clamp_ relu_ masked_fill_"),
    Row("`torch.compile(model)`, `torch.jit.script`", "nothing: automatic batching ([what is not there](not-there.md))",
        dy="jit script trace",
        says="nothing: what runs alike is joined by automatic batching, without a compiler"),
    Row("`torch.autograd.Function`", "`dy.custom_op(name, forward, backward)`, see [custom-op.md](custom-op.md)",
        torch="Function", says="`dy.custom_op(name, forward, backward)`"),
    Row("`torch.profiler.profile()`", "`with dynet_cy.profiling.measure() as profile:`", torch="profile profiler"),
    Row("`DistributedDataParallel(model)`, `torchrun`",
        "`trainer = dy.parallel.wrap(trainer)`, `python -m dynet_cy.launch`, see [parallel.md](parallel.md)",
        torch="DistributedDataParallel DataParallel distributed",
        says="`trainer = dy.parallel.wrap(trainer)`, in a program that `python -m dynet_cy.launch` starts"),
    Row("`torch.vmap(f)(xs)`", "`dy.batched_map(f, xs)`", dy="vmap"),
    Row("`x.contiguous()`, `x.retain_grad()`", "nothing", x="contiguous retain_grad is_contiguous",
        says="nothing: it is not needed"),
    Row("`x.register_hook(f)`", "`x.gradient()` after `backward(full=True)`; see [what is not there](not-there.md)",
        x="register_hook", says="`x.gradient()` after `loss.backward(full=True)`"),
)

LAYERS = (
    Row("`class Tagger(nn.Module)`, `super().__init__()`",
        "`class Tagger(nn.Layer)`, `super().__init__(model, spec)`, see [layers.md](layers.md); `def __call__` for "
        "`forward`", dy="Module", nn="Module", says="`class Tagger(dy.nn.Layer)`, with `def __call__` for `forward`"),
    Row("`nn.Linear(n, m)`, `nn.Embedding(v, n, padding_idx=0)`",
        "`nn.Linear(n, m, pc)`, `nn.Embedding(v, n, pc, padding=0)`", nn="EmbeddingBag"),
    Row("`nn.Sequential(nn.Linear(n, m), nn.ReLU())`", "`nn.Sequential([(nn.Linear, n, m), \"relu\"], pc)`"),
    Row("`nn.ReLU()`, `nn.Sigmoid()`, `nn.Tanh()`, `nn.GELU()`", "`nn.Activation(\"relu\")`, or a function, `dy.relu`",
        dy="ReLU", nn="ReLU", activation="ReLU", says="`relu`, as `dy.nn.Activation(\"relu\")` or the function "
        "`dy.relu`"),
    Row("`nn.Sigmoid()`", "`nn.Activation(\"sigmoid\")`, or the function `dy.sigmoid`", nn="Sigmoid",
        activation="Sigmoid"),
    Row("`nn.Tanh()`, `nn.GELU()`, `nn.SiLU()`, `nn.ELU()`", "`nn.Activation(\"tanh\")`, or the function `dy.tanh`",
        nn="Tanh GELU SiLU ELU SELU Softplus LogSigmoid LeakyReLU", activation="Tanh GELU",
        says="the name in lower case, as `dy.nn.Activation(\"tanh\")` or the function `dy.tanh`"),
    Row("`nn.Softmax(0)`, `nn.functional`", "functions: `dy.softmax(x)`",
        dy="F functional", nn="Softmax LogSoftmax functional", says="functions such as `dy.softmax(x)`"),
    Row("`nn.ModuleList([...])`", "`nn.LayerList([(nn.Linear, n, n)] * 3, pc)`", nn="ModuleList"),
    Row("`model(x)`, `model.forward(x)`",
        "`layer(x)`: its method is called `__call__`; of a builder `rnn.transduce(xs)`",
        layer="forward"),
    Row("`layer.weight`, `layer.bias`", "`layer.W`, `layer.b`; `layer.named_parameters()` lists all",
        layer="weight bias"),
    Row("`model.modules()`, `model.children()`, `model.apply(f)`",
        "a loop over `layer.sublayers()`, or over the parameters",
        layer="modules named_modules children named_children apply",
        says="a loop over `sublayers()` of a layer, or over `parameters_list()` of a collection"),
    Row("`self.register_buffer(name, v)`, `add_module`", "an attribute, `self.name = v`",
        layer="register_buffer buffers named_buffers add_module register_module"),
    Row("`lstm.hidden_size`, `input_size`, `num_layers`", "`rnn.hidden_dim`, `input_dim`, `layers`",
        layer="hidden_size input_size num_layers"),
    Row("`lstm.flatten_parameters()`", "nothing", layer="flatten_parameters", says="nothing: it is not needed"),
    Row("`nn.LayerNorm(n)`, `nn.RMSNorm(n)`, `nn.BatchNorm1d(n)`",
        "`nn.LayerNorm(n, pc, eps=1e-5)`, `nn.RMSNorm(n, pc)`, `nn.BatchNorm(n, pc)`"),
    Row("`nn.Conv1d(n, m, 3, padding=\"same\")`, `nn.Conv2d`",
        "`nn.Conv1d(n, m, 3, pc, padding=\"same\")`, `nn.Conv2d`"),
    Row("`nn.MultiheadAttention(n, h)`, `key_padding_mask`",
        "`nn.MultiHeadAttention(n, h, pc)`; no mask, as there is no padding", nn="MultiheadAttention"),
    Row("`nn.TransformerEncoder(layer, 2)`", "`nn.TransformerEncoder(2, n, heads, hidden, pc)`", nn="Transformer",
        missing="TransformerEncoder TransformerDecoder", argument="encoder_layer decoder_layer",
        torch="TransformerEncoder TransformerDecoder",
        says="`nn.TransformerEncoder(2, n, heads, hidden, pc)` (a decoder alike), which makes its layers itself"),
    Row("`nn.TransformerEncoderLayer(n, heads)`",
        "`nn.TransformerEncoderLayer(n, heads, 2048, pc, dropout=0.1)`: with PyTorch's defaults",
        torch="TransformerEncoderLayer TransformerDecoderLayer",
        says="`nn.{}(n, heads, 2048, pc, dropout=0.1)`, for PyTorch's defaults"),
    Row("`nn.GroupNorm(groups, n)`", "`nn.GroupNorm(groups, n, pc)`: channels are the last axis, or `axis=`",
        torch="GroupNorm"),
    Row("`nn.init.xavier_uniform_(p)`", "`pc.add_parameters(shape, init=dy.GlorotInitializer())`", nn="init",
        says="`init=` of `pc.add_parameters`: a number or an initializer such as `dy.GlorotInitializer()`"),
    Row("`nn.Embedding.from_pretrained(vectors)`",
        "`nn.Embedding.from_numpy(vectors, pc)`; from a file: `nn.read_vectors(path).embedding(pc, words)`"),
    Row("`model.load_state_dict(load_file(\"m.safetensors\"))`", "`model.load_pytorch(\"m.safetensors\")`"),
    Row("`model.train()`, `model.eval()`", "the same, of layers and builders", model="train eval",
        says="`layer.train()` and `layer.eval()`, of a layer or a builder"),
    Row("`DataLoader(data, 32, shuffle=True, collate_fn=f)`",
        "`dy.data.batches(data, 32, shuffle=True, seed=1, collate=f)`, also for data sets of PyTorch: [data](data.md)",
        dy="DataLoader utils Dataset", says="`dy.data.batches(data, 32, shuffle=True, seed=1)`"),
    Row("a sampler of batches of similar length, or with a limit of words",
        "`dy.data.batches(data, cost=len, most=2000, bucket=len)`"),
    Row("`num_workers=4`, `DistributedSampler`", "`processes=4` (or a thread: `prefetch=4`), `shard=\"join\"`"),
    Row("`LambdaLR` for warm-up",
        "`trainer.schedule = dy.WarmupSchedule(n)`; schedules are part of checkpoints ([guide](training.md))",
        dy="LambdaLR",
        says="`trainer.schedule = dy.WarmupSchedule(n)`, or a class derived from `dy.Schedule`"),
    Row("`ReduceLROnPlateau(optimizer)`, `scheduler.step(loss)`",
        "`trainer.schedule = dy.PlateauSchedule()`, `trainer.schedule.report(loss)`", dy="ReduceLROnPlateau"),
    Row("early stopping of another package", "`dy.EarlyStopping(pc, patience=3, path=\"best.safetensors\")`"),
    Row("`torch.onnx.export(model, (x,), \"m.onnx\", dynamic_axes=...)`",
        "`dy.onnx.export(f, {\"x\": dy.onnx.Floats((64, \"words\"))}, \"m.onnx\")`; see [onnx.md](onnx.md)",
        torch="export",
        says="`dy.onnx.export(f, {\"x\": dy.onnx.Floats((64, \"words\"))}, \"m.onnx\")`"),
    Row("`torch.from_dlpack(a)`, `np.from_dlpack(t)`",
        "the same with expressions (a copy) and parameters (shared), see [tensors.md](tensors.md)"),
    Row("a tensor of another library as an input",
        "`dy.inputTensor(tensor)`, `p.set_value(tensor)`: any CPU tensor with `__dlpack__` or `__array__`"),
    Row("`SummaryWriter.add_scalar`, `add_histogram`, `add_graph`",
        "`dynet_cy.curves.Curves(tensorboard=folder)`: `add`, `add_histograms`, `add_graph`", dy="SummaryWriter",
        says="`dynet_cy.curves.Curves(tensorboard=folder)`"),
    Row("`SummaryWriter.add_image`, `add_images`, `add_figure`, `add_audio`, `add_embedding`",
        "the same, of `Curves` and of `loggers.TensorBoard`"),
    Row("`AutoModel.from_pretrained(folder)`, `AutoTokenizer`, a collator that pads",
        "`bert = dy.pretrained.load(folder, pc)`, `bert(bert.tokenize(words))`, "
        "one sentence at a time ([guide](pretrained.md))", layer="from_pretrained", torch="from_pretrained",
        says="`dy.pretrained.load(folder, pc)`, which also reads the tokenizer; for vectors, "
        "`dy.nn.Embedding.from_numpy(vectors, pc)`"),
    Row("`model.generate(**inputs)` of a model that writes texts",
        "`gpt.generate(text, longest=20)`; encoders write none", layer="generate",
        says="`generate` of a decoder that `dy.pretrained.load` reads, such as GPT-2; encoders write no texts"),
    Row("`get_peft_model(model, LoraConfig(r=8))`", "`dy.pretrained.lora(bert, rank=8)`",
        torch="get_peft_model LoraConfig"),
    Row("`model.save_pretrained(folder)`", "`bert.save(folder)`, which `from_pretrained` reads",
        layer="save_pretrained", says="`save(folder)` of a model that `dy.pretrained.load` has read"),
    Row("`wandb.init(project)`, `wandb.log`, `mlflow.log_metrics`",
        "`dynet_cy.loggers.WandB(project)`, `MLflow(experiment)`: `log(numbers, step)`; see "
        "[training.md](training.md#loggers)"),
)

NUMPY = (
    Row("`np.tanh(x)`, `np.exp(x)`, `np.log(x)`", "the function of that name: `dy.tanh(x)`",
        numpy="ceil cos cosh cumprod cumsum einsum exp expm1 floor log log1p norm prod round sin sinh sort sqrt square "
        "tan tanh transpose where", says="`dy.{}(x)`"),
    Row("`np.arctan(x)`, `np.arccosh(x)`", "`dy.atan(x)`, `dy.acosh(x)`",
        numpy="arccos arccosh arcsin arcsinh arctan arctanh"),
    Row("`np.abs(x)`, `np.negative(x)`, `np.reciprocal(x)`", "`abs(x)`, `-x`, `1 / x`", dy="negative reciprocal",
        x="negative neg reciprocal", numpy="absolute fabs negative reciprocal"),
    Row("`np.add(x, y)`, `np.divide(x, y)`, `np.power(x, y)`", "the operators: `x + y`, `x / y`, `x ** y`",
        dy="subtract divide power", x="power", numpy="add subtract divide true_divide power float_power"),
    Row("`np.multiply(x, y)`", "`dy.cmult(x, y)`, element by element; `x * y` is the matrix product", dy="multiply",
        numpy="multiply"),
    Row("`np.matmul(x, y)`, `np.outer(x, y)`", "`x @ y`, `x @ y.T`", numpy="matmul matvec vecmat outer"),
    Row("`np.dot(x, y)`, `np.inner(x, y)`", "`x @ y`; of two vectors: `dy.dot_product(x, y)`",
        numpy="dot inner vdot vecdot tensordot"),
    Row("`np.greater(x, y)`, `np.equal(x, y)`", "`x > y`, `dy.equal(x, y)`",
        numpy="greater greater_equal less less_equal equal not_equal"),
    Row("`np.maximum(x, y)`, `np.minimum(x, y)`", "`dy.bmax(x, y)`, `dy.bmin(x, y)`",
        numpy="maximum minimum fmax fmin"),
    Row("`np.logaddexp(x, y)`", "`dy.logsumexp([x, y])`", numpy="logaddexp"),
    Row("`np.clip(x, a, b)`", "`dy.clip(x, a, b)`", numpy="clip"),
    Row("`np.std(x)`, `np.var(x)`", "`dy.std_elems(x)`; variance: its square", numpy="std var"),
    Row("`np.squeeze(x)`, `np.expand_dims(x, 1)`", "`x[:, 0]`, `x[:, None]`", numpy="squeeze expand_dims"),
    Row("`np.tile(x, n)`, `np.broadcast_to(x, shape)`",
        "nothing: shapes broadcast from the first axis on", numpy="tile repeat broadcast_to"),
    Row("`np.stack([x, y])`", "`dy.stack([x, y])`", numpy="stack dstack"),
    Row("`np.array([x, y])`, `np.concatenate`", "`dy.concatenate([x, y])`; of numbers: `dy.inputTensor(array)`",
        dy="array asarray hstack vstack", numpy="concatenate hstack vstack column_stack append block"),
    Row("`np.random.seed(s)`", "`dynet_cy.config.set(random_seed=s)`", dy="seed"),
    Row("`array += x`", "`array + x`, which makes a new expression"),
)

ARGUMENTS = (
    Row("`dim=`, `axis=`", "`d=`, `axis=` or `dims=`: the one that the function has", argument="dim axis d dims",
        says="`d=`, `axis=`, `dims=`"),
    Row("`keepdim=`", "`keepdims=`", argument="keepdim"),
    Row("`input=`, `other=`, `tensors=`", "arguments without a name", argument="input other tensor tensors",
        says="it without a name"),
    Row("`inplace=`, `out=`", "nothing: an op makes a new expression", argument="inplace out"),
    Row("`loss.backward(retain_graph=True)`", "nothing: `backward()` can be called again", argument="retain_graph"),
    Row("`create_graph=True`", "`dy.gradients(loss, xs)`", argument="create_graph"),
    Row("`F.dropout(x, p, training=t)`", "`if t:`; the layer `nn.Dropout` knows it from `train()` and `eval()`",
        argument="training", says="`if`; the layer `nn.Dropout` knows from `train()` and `eval()` whether it trains"),
    Row("`dtype=`", "nothing: numbers are float32, indices int32", argument="dtype"),
    Row("`requires_grad=False`", "`p.set_updated(False)`, or `dy.nobackprop(x)`", argument="requires_grad"),
    Row("`nn.LSTM(input_size=n)`", "`input_dim=`", argument="input_size"),
    Row("`nn.LSTM(hidden_size=n)`", "`hidden_dim=`", argument="hidden_size dim_feedforward"),
    Row("`nn.LSTM(num_layers=2)`", "`layers=`", argument="num_layers"),
    Row("`nn.LSTM(batch_first=True)`", "nothing: networks take a column, or an item of a list, for each position",
        argument="batch_first"),
    Row("`nn.LSTM(bidirectional=True)`", "`bidirectional=` of `dy.nn.LSTM`; of builders, `dy.BiRNNBuilder`",
        argument="bidirectional", says="`dy.BiRNNBuilder`"),
    Row("`nn.LSTM(dropout=p)`", "`rnn.set_dropout(p)`", argument="dropout", says="`set_dropout(p)` of what was made"),
    Row("`in_features=`, `in_channels=`", "`input_dim=`, `input_channels=`", argument="in_features in_channels"),
    Row("`out_features=`, `out_channels=`", "`output_dim=`, `output_channels=`",
        argument="out_features out_channels units"),
    Row("`kernel_size=`", "`width=`, `size=` or `ksize=`: the one that it has", argument="kernel_size",
        says="`width=`, `size=`, `ksize=`"),
    Row("`num_embeddings=`", "`size=`", argument="num_embeddings"),
    Row("`embedding_dim=`, `d_model=`, `normalized_shape=`", "`dim=`",
        argument="embedding_dim embed_dim d_model normalized_shape num_features"),
    Row("`padding_idx=`", "`padding=`", argument="padding_idx"),
    Row("`num_heads=`, `nhead=`", "`heads=`", argument="num_heads nhead"),
    Row("`batch_size=`", "`size=` or `width=`: the one that it has", argument="batch_size", says="`size=`, `width=`"),
    Row("`collate_fn=`", "`collate=`", argument="collate_fn"),
    Row("`num_workers=`, `prefetch_factor=`", "`processes=`, or a thread: `prefetch=`",
        argument="num_workers prefetch_factor"),
    Row("`sampler=`, `batch_sampler=`", "`cost=`, `most=` or `bucket=`", argument="sampler batch_sampler"),
    Row("`drop_last=True`", "`if len(batch) == size:` in the loop", argument="drop_last"),
    Row("`pin_memory=`, `persistent_workers=`", "nothing: it is not needed", argument="pin_memory persistent_workers"),
    Row("`min_freq=`", "`min_count=`", argument="min_freq"),
    Row("`max_tokens=`", "`max_size=`", argument="max_tokens vocab_size"),
    Row("`specials=`", "`special=`", argument="specials"),
    Row("`unk_token=`", "`unknown=`", argument="unk_token"),
    Row("`T_max=`, `total_iters=`, `num_warmup_steps=`", "`updates=`",
        argument="T_max total_iters num_warmup_steps num_training_steps warmup_steps"),
    Row("`eta_min=`", "`end=`", argument="eta_min"),
    Row("`step_size=`, `milestones=`", "`at=`", argument="step_size milestones"),
    Row("`gamma=`, `factor=`", "`by=`", argument="gamma factor"),
    Row("`threshold=`", "`min_delta=`", argument="threshold"),
    Row("`min_lr=`", "`least=`", argument="min_lr"),
    Row("`test_size=0.1`", "`every=10`", argument="test_size"),
    Row("`generate(max_new_tokens=n)`", "`longest=`", text="max_new_tokens max_length"),
    Row("`generate(num_beams=4)`", "`width=`", text="num_beams"),
    Row("`generate(do_sample=True, temperature=t)`", "`sample=`: `dy.pretrained.Sampling(temperature=t)`",
        text="do_sample temperature top_k top_p"),
    Row("`generate(eos_token_id=i, min_new_tokens=n, no_repeat_ngram_size=3)`",
        "`end=`, `min_length=`, `no_repeat_ngram=`", text="eos_token_id min_new_tokens no_repeat_ngram_size"),
    Row("`tokenizer(texts, padding=True, return_tensors=\"pt\")`, `model(ids, attention_mask=m)`",
        "nothing: texts of any lengths need no padding; `bert(bert.tokenize(text))` for each of them",
        text="padding return_tensors attention_mask token_type_ids return_attention_mask"),
    Row("`tokenizer(text, truncation=True)`", "`longest=`", text="truncation"),
    Row("`tokenizer(words, is_split_into_words=True)`", "nothing: a list is one of words",
        text="is_split_into_words add_special_tokens", says="nothing: a list is one of words, a string a text"),
    Row("`tokenizer(text=a, text_pair=b)`, `model(input_ids=ids)`", "arguments without a name",
        text="text_pair input_ids pixel_values", says="it without a name"),
    Row("`from_pretrained(folder, num_labels=3)`", "`labels=`", text="num_labels id2label label2id"),
    Row("`LoraConfig(r=8)`", "`rank=`", text="r"),
    Row("`LoraConfig(lora_alpha=16)`", "`alpha=`", text="lora_alpha"),
    Row("`LoraConfig(target_modules=[\"query\"])`", "`of=`", text="target_modules"),
    Row("`LoraConfig(lora_dropout=0.1)`", "`dropout=`", text="lora_dropout"),
    Row("`onnx.export(..., input_names=names, dynamic_axes=axes)`",
        "names and shapes of `inputs`: `{\"x\": dy.onnx.Floats((64, \"words\"))}`; an axis with a name has any length",
        argument="input_names dynamic_axes dynamic_shapes"),
    Row("`onnx.export(..., output_names=names)`", "a dictionary as the result of the function: `{\"scores\": y}`",
        argument="output_names"),
    Row("`nn.Linear(3, 2)`", "`nn.Linear(3, 2, pc)`: with the collection", missing="model",
        says="the ParameterCollection where its parameters go"),
    Row("`F.dropout(x)`, `nn.Dropout()`", "`dy.dropout(x, 0.5)`, `nn.Dropout(0.5)`: the rate has no default",
        missing="dropout Dropout", says="the probability that an element is dropped, `0.5` as PyTorch's default"),
)

TENSORFLOW = (
    Row("`tf.Variable(v)`", "`pc.add_parameters(shape, init=v)`", dy="Variable"),
    Row("`tf.constant(v)`, `tf.convert_to_tensor(v)`", "`dy.inputTensor(v)`; `dy.constant(shape, v)`",
        dy="convert_to_tensor placeholder"),
    Row("`tf.matmul(a, b)`, `tf.multiply(a, b)`", "`a @ b`, `dy.cmult(a, b)`"),
    Row("`tf.concat([a, b], 0)`, `tf.expand_dims(x, 1)`", "`dy.concatenate([a, b], d=0)`, `x[:, None]`",
        dy="concat expand_dims"),
    Row("`tf.tile`, `tf.broadcast_to`", "nothing: shapes broadcast from the first axis on",
        dy="broadcast_to"),
    Row("`tf.reduce_sum(x, 0)`, `tf.reduce_mean(x)`", "`x.sum(0)`, `x.mean()`, `x.max()`, `x.min()`",
        dy="reduce_sum reduce_mean reduce_max reduce_min"),
    Row("`tf.add_n(xs)`", "`dy.esum(xs)`", dy="add_n"),
    Row("`tf.nn.embedding_lookup(table, ids)`", "`dy.lookup_batch(table, ids)`", dy="embedding_lookup"),
    Row("`tf.clip_by_value(x, a, b)`", "`dy.clip(x, a, b)`", dy="clip_by_value"),
    Row("`tf.nn.softmax_cross_entropy_with_logits`", "`dy.pickneglogsoftmax(x, i)`, or `dy.cross_entropy(x, ids)`",
        dy="softmax_cross_entropy_with_logits sparse_softmax_cross_entropy_with_logits"),
    Row("`tf.stop_gradient(x)`", "`dy.nobackprop(x)`", dy="stop_gradient"),
    Row("`tf.GradientTape()`, `tape.gradient(loss, p)`",
        "nothing to record: `loss.backward()`, then `p.grad_as_array()`, or `x.gradient()` after `backward(full=True)`",
        dy="GradientTape"),
    Row("`optimizer.minimize(loss)`, `apply_gradients`", "`loss.backward()`, then `trainer.update()`",
        dy="optimizers", trainer="minimize apply_gradients"),
    Row("`clip_by_global_norm`", "`trainer.set_clip_threshold(c)`, once", dy="clip_by_global_norm", trainer="clipnorm",
        keyword="clipnorm clipvalue global_clipnorm"),
    Row("`tf.keras.layers.Dense(m, activation=\"relu\")`", "`nn.Linear(n, m, pc)`, then `dy.relu`", dy="Dense keras",
        nn="Dense"),
    Row("`tf.keras.layers.Embedding`, `SimpleRNN`", "`nn.Embedding(v, n, pc)`, `dy.SimpleRNNBuilder`", dy="SimpleRNN"),
    Row("`model.compile`, `model.fit`", "a loop of yours; see [training.md](training.md)", model="compile fit predict",
        says="a loop over `dy.data.batches`, with `loss.backward()` and `trainer.update()`"),
    Row("`tf.cast(x, tf.float32)`", "nothing: numbers are float32, indices int32", dy="cast"),
    Row("`tf.random.set_seed(s)`", "`dynet_cy.config.set(random_seed=s)`", dy="set_random_seed"),
)
# fmt: on

# The classes with attributes that only say what to write, by column.
CLASSES = {
    "x": r"graph\.expressions\.Expression",
    "trainer": r"train\.trainer\.Trainer",
    "model": r"(Model|model\.collection\.ParameterCollection)",
    "state": r"rnn\.state\.RNNState",
    "layer": r"(nn\.layer\.Layer|rnn\.builder\._RNNBuilder|rnn\.birnn\.BiRNNBuilder)",
}
TABLES = {
    "equivalents": GENERAL,
    "layers": LAYERS,
    "arguments": ARGUMENTS,
    "numpy": NUMPY,
    "tensorflow": TENSORFLOW,
}


# The row of a name in a column.
_ROWS = {
    (place, name): row
    for rows in TABLES.values()
    for row in rows
    for place, names in zip(Row._fields[2:-1], row[2:-1])
    for name in names.split()
}


def advice(place: str, name: str) -> str:
    """The advice of an error about a name of another library, "; write ...", or nothing where it is not in the tables.

    Args:
        place: the column of names, `dy`, `nn`, `x` and so on.
        name: what the program has written.
    """
    row = _ROWS.get((place, name))
    return "" if row is None else f"; write {(row.says or row.ours).replace('{}', name)}"


def of_arguments(
    called: Callable[..., object], names: Iterable[str], place: str = "argument", given: int | None = None
) -> str:
    """Advice for the error of a call with wrong or missing arguments of a function or class; nothing if there are none.

    Args:
        called: the function or class
        names: those of the arguments
        place: the column of the tables that has such names
        given: how many arguments have no name; None: not looked at
    """
    names = list(names)
    signature = inspect.signature(called)
    own = signature.parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values()):
        return ""
    wrong = next((name for name in names if name not in own), None)
    lacking = None if given is None else _lacking(list(own.values()), given, names)
    if wrong is None and lacking is None:
        return ""
    plain = [p.replace(annotation=p.empty) for p in own.values() if p.name != "self"]
    takes = signature.replace(parameters=plain, return_annotation=signature.empty)
    if wrong is None:
        said = advice("missing", called.__name__) or advice("missing", str(lacking))
        return f"{called.__name__}: argument {lacking} is missing{said.replace('; write', ':')}; it takes {takes}"
    return f"{called.__name__}: there is no argument {wrong}{_instead(place, wrong, set(own))}; it takes {takes}"


def _lacking(own: list[inspect.Parameter], given: int, names: list[str]) -> str | None:
    """The first argument without a default that a call does not have."""
    for at, parameter in enumerate(own):
        by_place = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) and at < given
        several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not by_place and not several and parameter.default is parameter.empty and parameter.name not in names:
            return parameter.name
    return None


def _instead(place: str, name: str, own: set[str]) -> str:
    """What to write for an argument: of those that a row names, the ones that the function has."""
    row = _ROWS.get((place, name))
    named = re.findall(r"`(\w+)=`", row.says or row.ours) if row else []
    if not named:
        return advice(place, name)
    there = [f"`{other}=`" for other in named if other in own]
    return f"; write {' or '.join(there)}" if there else ""


class KnownArguments:
    """A class whose constructor gives advice for wrong arguments."""

    _arguments = "argument"
    """The column of the tables with the names."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Up to Python 3.10, `inspect.signature` prefers `__new__` to a constructor that the class has inherited.
        if "__init__" not in vars(cls):
            cls.__init__ = cls.__init__  # type: ignore[method-assign]

    def __new__(cls: type[Self], *args: object, **settings: object) -> Self:
        if settings:
            wrong = of_arguments(cls, settings, cls._arguments)
            if wrong:
                raise TypeError(wrong)
        return super().__new__(cls)


class Elsewhere:
    # An attribute that objects of other libraries have. It takes the place of `__getattr__`, which would slow down all
    # methods of expressions. No docstring, as help() would show it once for each name.
    __slots__ = ("name", "place")

    def __init__(self, place: str, name: str) -> None:
        self.place, self.name = place, name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self.name!r}{advice(self.place, self.name)}")

    def __repr__(self) -> str:
        return f"<not here{advice(self.place, self.name)}>"


class ElsewhereInModule(Elsewhere):
    # A name of the package that other libraries have: calling it, a name in it, or a class derived from it are errors.
    # With a `__getattr__` of the package instead, Python would look up `dy.tanh` without a cache, 11 ns more for each
    # node.
    __slots__ = ()

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise AttributeError(f"module 'dynet_cy' has no attribute {self.name!r}{advice(self.place, self.name)}")

    __getattr__ = __getitem__ = __mro_entries__ = __call__


def names(place: str) -> list[str]:
    """The names of a column of the tables."""
    return sorted(name for column, name in _ROWS if column == place)


def listed(self: object) -> list[str]:
    """`__dir__` of objects that have such attributes, which completion leaves out."""
    return [n for n in object.__dir__(self) if not isinstance(inspect.getattr_static(self, n, None), Elsewhere)]


def elsewhere(place: str, owner: type) -> dict[str, object]:
    """Attributes for a class that give advice for names of other libraries."""
    return {"__dir__": listed, **{n: Elsewhere(place, n) for n in names(place) if not hasattr(owner, n)}}


def of_package(namespace: dict[str, object]) -> dict[str, object]:
    """Names of other libraries for the package, and a `__dir__` that leaves them out."""

    def __dir__() -> list[str]:
        return sorted(name for name, value in namespace.items() if not isinstance(value, Elsewhere))

    return {"__dir__": __dir__, **{n: ElsewhereInModule("dy", n) for n in names("dy")}}


def of_numpy(function: str) -> str:
    """Advice for the error of a NumPy function called with expressions; nothing if it is not in the tables."""
    return advice("numpy", function)


def of_module(place: str, module: str) -> Callable[[str], NoReturn]:
    """A function `__getattr__` for a module."""

    def __getattr__(name: str) -> NoReturn:
        raise AttributeError(f"module {module!r} has no attribute {name!r}{advice(place, name)}")

    return __getattr__
