"""Entry points of programs: one step with a sample per lane, or all steps with a client per lane."""

from __future__ import annotations

from functools import partial

from fedrecall.client.lanes.kernels import linear, sample_loading, vectors
from fedrecall.client.lanes.kernels.context import Machine
from fedrecall.client.lanes.kernels.ir import ADDRESS, FLOAT, LANES, ZERO, Function, Number
from fedrecall.client.lanes.kernels.layers import Chain, Linear
from fedrecall.client.lanes.kernels.loss import loss
from fedrecall.client.lanes.kernels.program import Call, Place, Program, whole_units

OF_SAMPLES = ("pw", "px", "ppixels", "prows", "pscratch", "ichunks")
# Arguments of a step of sixteen clients: those of the group, and those shared by all groups.
OF_GROUP = ("pw", "prows", "poffset", "ploss")
OF_ALL = ("px", "ppixels", "ptarget", "pscale", "pscratch", "istride", "isize", "ichunks")


class SamplesProgram(Program):
    """One sample per lane. `forward` computes logits from the rows of a batch, `backward` the weights' gradient
    from the logits' gradient, `step` loss and gradient from the rows; `decay` and `descend` are SGD."""

    def __init__(
        self, chain: Chain, units: int, machine: Machine, momentum: float, decay: float, *, pixels: bool
    ) -> None:
        super().__init__(chain, units, machine, pixels=pixels, clients=False)
        self._lane_sums = vectors.lane_sums(self.kit, "lane_sums")
        f = self.forward = Function(self.kit.module, "forward", *OF_SAMPLES)
        self.forward_calls(f, "%prows")
        f.done()
        f = self.backward = Function(self.kit.module, "backward", "pw", "pg", "pscratch", "ichunks")
        self._gradient_calls(f)
        f.done()
        self.step = self._step()
        self.decay = vectors.decay(self.kit, "decay", chain.parameters, decay)
        self.descend = vectors.descend(self.kit, "descend", chain.parameters, momentum)

    def _gradient_calls(self, f: Function) -> None:
        self.backward_calls(f)
        for at, (place, count) in self.sums.items():
            to = Place(at * FLOAT, base="%pg")
            Call(self._lane_sums, (place, to), (whole_units(count) // LANES,)).write(f)

    def _step(self) -> Function:
        """Return the kernel of a step without SGD; `plabels` are int32, `pscale` the samples' weights."""
        of_logits, losses = loss(self.kit, "loss", self.chain.outputs, self.units), self.room(1)
        f = Function(self.kit.module, "step", *OF_SAMPLES, "pg", "poffset", "plabels", "pscale", "ploss")
        self.forward_calls(f, "%prows")
        z, g = self.at_logits.address(f, 0), self.at_logits_gradient.address(f, 0)
        sums = losses.address(f, 0)
        f.store(ZERO, sums)
        f.call(of_logits, z, "%poffset", "%plabels", "%pscale", f.ones(), g, sums)
        f.store_total(f.load(sums), "%ploss")
        self._gradient_calls(f)
        return f.done()

    def weight_calls(self, i: int, c: Linear, x: Place, g: Place) -> list[Call]:
        kit, units, to = self.kit, self.units, Place(c.weight * FLOAT, base="%pg")
        turned = self.room(whole_units(c.inputs) * units)
        calls = [
            Call(linear.turned(kit, f"turned_{i}", c, units), (x, turned)),
            Call(linear.weight_gradient_of_one(kit, f"linear_weights_{i}", c, units), (g, turned, to)),
        ]
        if c.bias is not None:
            sums = self.sums_of(c.bias, c.outputs)
            calls.append(Call(linear.bias_gradient(kit, f"linear_bias_{i}", c, units), (g, sums)))
        return calls


class ClientsProgram(Program):
    """One client per lane: `run` takes whole steps, including the loss and SGD."""

    def __init__(
        self, chain: Chain, units: int, machine: Machine, momentum: float, decay: float,
        *, pixels: bool = False,
    ) -> None:  # fmt: skip
        self._update = partial(vectors.update, momentum=momentum, decay=decay, velocity=chain.parameters)
        super().__init__(chain, units, machine, pixels=pixels, clients=True)
        self.vectors = 2 if momentum else 1
        self.run = self._run(self._step())

    def weight_calls(self, i: int, c: Linear, x: Place, g: Place) -> list[Call]:
        kernel = linear.weight_gradient(self.kit, f"linear_weights_{i}", c, self.units, self._update)
        return [Call(kernel, (g, x, Place(0, base="%pw"), Place(0, base="%prate")))]

    def _step(self) -> Function:
        """Return the kernel of one step of sixteen clients; `prate` holds each lane's rate and activity flag."""
        kit, units = self.kit, self.units
        move = vectors.pass_on_sums(kit, "move", self._update)
        choose, of_logits = (
            sample_loading.select_samples(kit, "choose", units),
            loss(kit, "loss", self.chain.outputs, units),
        )
        chosen, labels = self.room((units + 1) * LANES, ADDRESS), self.room(units)
        f = Function(kit.module, "step", *OF_GROUP, "prate", *OF_ALL)
        rows, at_labels = chosen.address(f, 0), labels.address(f, 0)
        f.call(choose, "%prows", "%ptarget", rows, at_labels, "%istride", "%isize")
        self.forward_calls(f, rows)
        z, g = self.at_logits.address(f, 0), self.at_logits_gradient.address(f, 0)
        f.call(of_logits, z, "%poffset", at_labels, "%pscale", f.at("%prate", 1), g, "%ploss")
        self.backward_calls(f)
        for at, (place, count) in self.sums.items():
            f.call(move, place.address(f, 0), "%pw", "%prate", at, count)
        return f.done()

    def _run(self, step: Function) -> Function:
        """Return the kernel of some steps of several groups of sixteen clients, with data consecutive in memory.
        A client has taken `ibegun` of its `psteps` steps before. `ifirst`: first copy the weights from `pstart`.
        `ilast`: finally add the weights, times their shares, to `psums`.

        for group:
            for step
        """
        kit, chain = self.kit, self.chain
        start = vectors.copy_weights(kit, "start", chain.parameters, (self.vectors - 1) * chain.parameters)
        add_up, rate = vectors.add_up(kit, "add_up", chain.parameters), self.room(2)
        own = ("psteps", "plr", "pstart", "pshare", "psums", "isteps", "ibegun", "igroups", "ifirst", "ilast")
        f = Function(kit.module, "run", *OF_GROUP, *OF_ALL, *own)
        lr, at_rate = f.spread("%plr"), rate.address(f, 0)

        def group(g: Number) -> None:
            w, offset = f.at("%pw", (g, chain.parameters * self.vectors)), f.at("%poffset", (g, chain.outputs))
            rows = f.at("%prows", (f.index((g, LANES)), "%istride"), size=ADDRESS)
            steps, losses = f.load_whole(f.at("%psteps", g)), f.at("%ploss", g)
            f.when("%ifirst", lambda: f.call(start, "%pstart", w))

            def one(s: Number) -> None:
                active = f.more(steps, f.index(s, "%ibegun"))
                f.store(f.select(active, lr, ZERO), at_rate)
                f.store(f.select(active, f.constant(1.0), ZERO), f.at(at_rate, 1))
                own = w, f.at(rows, (s, "%isize"), size=ADDRESS), offset, losses
                f.call(step, *own, at_rate, *[f"%{name}" for name in OF_ALL])

            left = f.index(f.most(steps), ("%ibegun", -1))
            f.loop(f.larger(1, f.smaller(left, "%isteps")), one)
            f.when("%ilast", lambda: f.call(add_up, w, f.at("%pshare", g), "%psums"))

        f.loop("%igroups", group)
        return f.done()
