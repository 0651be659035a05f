"""A chain of layers as code: where everything lies in its scratch memory, and which kernel runs when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from fedrecall.client.lanes import convolution, ends, linear, pooling
from fedrecall.client.lanes.ir import ADDRESS, LANES, UNIT, Function, Number
from fedrecall.client.lanes.kit import Kit, Machine
from fedrecall.client.lanes.layers import Chain, Convolution, Grid, Pixels, Pooling, Spatial, after


@dataclass(frozen=True)
class Update:
    """What is done with gradients in the kernels: steps of SGD."""

    momentum: float
    decay: float


def chunk_of(chain: Chain, units: int) -> int:
    """How many units go through the layers on images together: by the model and the batch alone. Two fill the
    registers where a row is short, and more would not stay in the cache."""
    return 2 if chain.spatial and units % 2 == 0 else 1


class Program:
    """The IR of `forward` and `backward`, a sample in each lane, or with an update of `run`, a client in each.

    All of it works in one piece of memory, `scratch_bytes` long, on a boundary of 64 bytes and at first all zeros.
    """

    def __init__(
        self,
        chain: Chain,
        units: int,
        machine: Machine,
        update: Update | None = None,
        pixels: Pixels | None = None,
    ) -> None:
        self.chain, self.units, self.updates, self._bytes = chain, units, update, pixels
        self.spatial = with_pooling_last(chain.spatial)
        self.kit = Kit(update is not None, chunk_of(chain, units), machine)
        self.chunks = units // self.kit.chunk
        self.scratch_bytes = 0
        convolutions = [j for j, layer in enumerate(self.spatial) if isinstance(layer, Convolution)]
        self.first = convolutions[0] if convolutions else len(self.spatial)  # to learn anything
        self._lay_out()
        self._write_kernels()
        if update is None:
            self._write_forward_and_backward()
        else:
            self._write_run_groups(self._write_run())
        self.text = self.kit.module.text()

    # Where things lie

    def _room(self, units: int, size: int = UNIT) -> int:
        """Bytes for so many things: where they begin."""
        at, self.scratch_bytes = self.scratch_bytes, self.scratch_bytes + -(-units * size // UNIT) * UNIT
        return at

    def _lay_out(self) -> None:
        chain, kit, units, last = self.chain, self.kit, self.units, len(self.spatial)
        self.grids = [self._grid(j) for j in range(last + 1)]
        self.gradients = [self._gradient_grid(j) for j in range(last + 1)]
        kept = [self.chunks if self._kept(j) else 1 for j in range(last)]
        features = whole_units(chain.features) * units
        self.at_x = [self._room(grid.size * times) for grid, times in zip(self.grids, kept)]
        self.at_x.append(self._room(features))
        self.at_g = [self._room(grid.size) for grid in self.gradients[:last]]
        self.at_g.append(self._room(features))
        self.pixels = [grid.channels * grid.height * grid.width * kit.chunk for grid in self.grids]
        self.at_seats = [self._room(self.pixels[j + 1] * self.chunks, LANES) for j in range(last)]
        weights = [c.outputs * c.group[0] * c.taps if isinstance(c, Convolution) else 0 for c in self.spatial]
        self.at_packed = [self._room(count, kit.weight_size) for count in weights]
        self.at_packed_back = [self._room(count, kit.weight_size) for count in weights]
        self.at_h = [self.at_x[-1]] + [self._room(whole_units(c.outputs) * units) for c in chain.linear]
        self.at_gh = [self.at_g[-1]] + [self._room(whole_units(c.outputs) * units) for c in chain.linear]
        self.at_turned = self._room(max([whole_units(c.inputs) for c in chain.linear], default=0) * units)
        # The parameters whose gradients are first summed in lanes: their places in the vector, and their number.
        self.slots: list[tuple[int, int]] = []
        for count, c in zip(weights, self.spatial):
            if isinstance(c, Convolution):
                self.slots += [(c.weight, count)] + ([] if c.bias is None else [(c.bias, c.outputs)])
        if not kit.clients:
            self.slots += [(c.bias, c.outputs) for c in chain.linear if c.bias is not None]
        self.at_sums = {slot: self._room(whole_units(count)) for slot, count in self.slots}
        self.sums = sum(whole_units(count) for _, count in self.slots)  # they lie next to each other

    def _grid(self, j: int) -> Grid:
        """Of the input of layer j on images, or of the features behind the last."""
        shape = self.chain.shapes[min(j, len(self.chain.shapes) - 1)]
        if j == len(self.spatial):
            return Grid(*shape, self.units)
        layer = self.spatial[j]
        top, left = layer.padding if isinstance(layer, Convolution) else (0, 0)
        return Grid(*shape, self.kit.chunk, top, left)

    def _gradient_grid(self, j: int) -> Grid:
        """Of the gradient of the same. Where a convolution gives the gradient of its own input from it, its pixels
        are as far apart as the stride, and at both sides is room for taps."""
        grid = self._grid(j)
        layer = self.spatial[j - 1] if j else None
        plain = Grid(grid.channels, grid.height, grid.width, grid.pitch)
        if not isinstance(layer, Convolution) or j - 1 <= self.first:
            return plain
        _, height, width = self.chain.shapes[j - 1]
        rows, columns = after(replace(layer, stride=(1, 1)), height, width)
        more = rows - (grid.height - 1) * layer.stride[0] - 1, columns - (grid.width - 1) * layer.stride[1] - 1
        beside = layer.kernel[1] - 1 - layer.padding[1]
        return replace(plain, left=beside, between=layer.stride, more=more)

    def _kept(self, j: int) -> bool:
        """Is the input of layer j looked at again on the way back?"""
        return isinstance(self.spatial[j], Convolution) or self._after_relu(j)

    def _after_relu(self, j: int) -> bool:
        return j > 0 and self.spatial[j - 1].relu

    # Kernels

    def _write_kernels(self) -> None:
        kit, units, x, g = self.kit, self.units, self.grids, self.gradients
        self.gather = ends.gather(kit, "gather", self.chain.sample, x[0], self._bytes)
        self.clear = ends.clear(kit, "clear")
        self.spatial_forward: list[Function] = []
        self.packs: dict[int, list[Function]] = {}
        self.spatial_backward: dict[int, list[Function]] = {}
        for j, layer in enumerate(self.spatial):
            masked = x[j] if self._after_relu(j) else None
            if isinstance(layer, Convolution):
                back = j > self.first
                self.packs[j] = [convolution.pack(kit, f"pack_{j}", layer, back=False)]
                self.packs[j] += [convolution.pack(kit, f"pack_back_{j}", layer, back=True)] if back else []
                self.spatial_forward.append(convolution.forward(kit, f"convolution_{j}", layer, x[j], x[j + 1]))
                name = f"convolution_weights_{j}"
                self.spatial_backward[j] = [convolution.weight_gradient(kit, name, layer, x[j], g[j + 1])]
                if back:
                    name = f"convolution_input_{j}"
                    by_input = convolution.input_gradient(kit, name, layer, g[j + 1], g[j], masked)
                    self.spatial_backward[j].append(by_input)
            else:
                self.spatial_forward.append(pooling.forward(kit, f"pooling_{j}", layer, x[j], x[j + 1]))
                if j > self.first:
                    back_to = pooling.backward(kit, f"pooling_input_{j}", layer, g[j + 1], g[j], masked)
                    self.spatial_backward[j] = [back_to]
        layers = list(enumerate(self.chain.linear))
        self.turned: list[Function] = []
        self.linear_weights: list[Function] = []
        self.linear_forward = [linear.forward(kit, f"linear_{i}", c, units) for i, c in layers]
        self.linear_input = {
            i: linear.input_gradient(kit, f"linear_input_{i}", c, units, after_relu=self._features_after_relu(i))
            for i, c in layers
            if i or self.first < len(self.spatial)
        }

    def _features_after_relu(self, i: int) -> bool:
        """Did the input of linear layer i come from ReLU?"""
        return self.chain.linear[i - 1].relu if i else self._after_relu(len(self.spatial))

    def _scratch(self, f: Function, at: int) -> str:
        return f.at("%pscratch", at, size=1)

    def _parameter(self, f: Function, at: int | None) -> str:
        """A parameter's place in the vector; a bias that is not there is never looked at."""
        return self.kit.weight_at(f, "%pw", at or 0)

    def _chunk_of(self, f: Function, j: int, c: Number) -> str:
        """A chunk of the input of layer j on images."""
        if j == len(self.spatial):
            return f.at(self._scratch(f, self.at_x[j]), (c, self.kit.chunk))
        return f.at(self._scratch(f, self.at_x[j]), (c, self.grids[j].size if self._kept(j) else 0))

    def _seats_of(self, f: Function, j: int, c: Number) -> str:
        return f.at(self._scratch(f, self.at_seats[j]), (c, self.pixels[j + 1]), size=LANES)

    # The way there

    def _forward(self, f: Function, rows: str) -> None:
        """From the samples of these rows to the last layer's output."""
        for j, packs in self.packs.items():
            for pack, to in zip(packs, (self.at_packed[j], self.at_packed_back[j])):
                layer = self.spatial[j]
                assert isinstance(layer, Convolution)
                f.call(pack, self._parameter(f, layer.weight), self._scratch(f, to))

        def chunk(c: Number) -> None:
            first = self._chunk_of(f, 0, c)

            def unit(n: Number) -> None:
                own = f.at(rows, (c, self.kit.chunk * LANES), (n, LANES), size=ADDRESS)
                f.call(self.gather, "%px", own, f.at(first, n))

            f.loop(self.kit.chunk, unit)
            for j, (layer, kernel) in enumerate(zip(self.spatial, self.spatial_forward)):
                x, y = self._chunk_of(f, j, c), self._chunk_of(f, j + 1, c)
                if isinstance(layer, Convolution):
                    f.call(kernel, x, self._scratch(f, self.at_packed[j]), self._parameter(f, layer.bias), y)
                else:
                    f.call(kernel, x, y, self._seats_of(f, j, c))

        f.loop("%ichunks", chunk)
        for i, (c, kernel) in enumerate(zip(self.chain.linear, self.linear_forward)):
            weight, bias = self._parameter(f, c.weight), self._parameter(f, c.bias)
            f.call(kernel, self._scratch(f, self.at_h[i]), weight, bias, self._scratch(f, self.at_h[i + 1]))

    # The way back

    def _input_gradient(self, f: Function, i: int) -> None:
        """Through linear layer i, if anything before it learns."""
        if i in self.linear_input:
            g, x, dx = (self._scratch(f, at) for at in (self.at_gh[i + 1], self.at_h[i], self.at_gh[i]))
            f.call(self.linear_input[i], g, self._parameter(f, self.chain.linear[i].weight), x, dx)

    def _spatial_backward(self, f: Function) -> None:
        """Through the layers on images, chunk after chunk: their parameters' gradients, summed in each lane."""

        def chunk(before: Number) -> None:
            c = f.index("%ichunks", (before, -1), -1)  # what is still near comes first
            for j in reversed(range(self.first, len(self.spatial))):
                layer, x = self.spatial[j], self._chunk_of(f, j, c)
                g = self._scratch(f, self.at_g[j + 1])
                if j + 1 == len(self.spatial):
                    g = f.at(g, (c, self.kit.chunk))
                dx = self._scratch(f, self.at_g[j])
                if isinstance(layer, Pooling):
                    f.call(self.spatial_backward[j][0], g, x, dx, self._seats_of(f, j, c))
                    continue
                weights, *by_input = self.spatial_backward[j]
                f.call(weights, x, g, self._sums(f, layer.weight), self._sums(f, layer.bias))
                for kernel in by_input:
                    f.call(kernel, g, self._scratch(f, self.at_packed_back[j]), x, dx)

        if self.first < len(self.spatial):
            f.loop("%ichunks", chunk)

    def _sums(self, f: Function, slot: int | None) -> str:
        return self._scratch(f, self.at_sums[slot] if slot is not None else 0)

    def _clear_sums(self, f: Function) -> None:
        if self.slots:
            f.call(self.clear, self._sums(f, self.slots[0][0]), self.sums)

    # A sample in each lane

    def _write_forward_and_backward(self) -> None:
        kit, units = self.kit, self.units
        layers = list(enumerate(self.chain.linear))
        self.turned = [linear.turned(kit, f"turned_{i}", c, units) for i, c in layers]
        by_weights = linear.weight_gradient_of_one
        self.linear_weights = [by_weights(kit, f"linear_weights_{i}", c, units) for i, c in layers]
        biases = [linear.bias_gradient(kit, f"linear_bias_{i}", c, units) for i, c in layers]
        lane_sums = ends.lane_sums(kit, "lane_sums")
        f = Function(kit.module, "forward", "pw", "px", "prows", "pscratch", "ichunks")
        self._forward(f, "%prows")
        f.done()
        f = Function(kit.module, "backward", "pw", "pg", "pscratch", "ichunks")
        self._clear_sums(f)
        for i, layer in reversed(layers):
            self._input_gradient(f, i)
            g, x, to = (self._scratch(f, at) for at in (self.at_gh[i + 1], self.at_h[i], self.at_turned))
            f.call(self.turned[i], x, to)
            f.call(self.linear_weights[i], g, to, f.at("%pg", layer.weight, size=4))
            if layer.bias is not None:
                f.call(biases[i], g, self._sums(f, layer.bias))
        self._spatial_backward(f)
        for slot, count in self.slots:
            f.call(lane_sums, self._sums(f, slot), f.at("%pg", slot, size=4), whole_units(count) // LANES)
        f.done()

    # A client in each lane

    def _write_run(self) -> Function:
        """All steps of sixteen clients: rows and labels of the samples, what each counts, and a rate for each lane
        and step."""
        kit, units, update = self.kit, self.units, self.updates
        assert update is not None
        give = partial(ends.update, momentum=update.momentum, decay=update.decay, velocity=self.chain.parameters)
        self.linear_weights = [
            linear.weight_gradient(kit, f"linear_weights_{i}", c, units, give, "pw", "prate")
            for i, c in enumerate(self.chain.linear)
        ]
        loss = ends.loss(kit, "loss", self.chain.outputs, units)
        step = Function(kit.module, "step", "pg", "pw", "prate", "ifirst", "icount")
        step.loop("%icount", lambda i: give(step, step.load(step.at("%pg", i)), step.index("%ifirst", i)))
        step.done()
        names = ("pw", "px", "prows", "plabels", "pscale", "prate", "poffset", "ploss", "pscratch")
        f = Function(kit.module, "run", *names, "isteps", "ichunks")

        def one(s: Number) -> None:
            self._forward(f, f.at("%prows", (s, units * LANES), size=ADDRESS))
            labels, rate = f.at("%plabels", (s, units)), f.at("%prate", s)
            z, g = self._scratch(f, self.at_h[-1]), self._scratch(f, self.at_gh[-1])
            f.call(loss, z, "%poffset", labels, "%pscale", g, f.at("%ploss", (s, 2 * units)))
            self._clear_sums(f)
            for i in reversed(range(len(self.linear_weights))):
                self._input_gradient(f, i)
                g, x = self._scratch(f, self.at_gh[i + 1]), self._scratch(f, self.at_h[i])
                f.call(self.linear_weights[i], g, x, "%pw", rate)
            self._spatial_backward(f)
            for slot, count in self.slots:
                f.call(step, self._sums(f, slot), "%pw", rate, slot, count)

        f.loop("%isteps", one)
        return f.done()

    def _write_run_groups(self, run: Function) -> None:
        """Several groups of sixteen, one after the other: all that is a group's own lies behind the one before it,
        with room for `isteps` steps, of which `pcounts` says how many it takes."""
        f = Function(self.kit.module, "run_groups", *run.arguments, "pcounts", "igroups")
        length = self.chain.parameters * (2 if self.updates and self.updates.momentum else 1)
        samples = f.index(("%isteps", self.units))

        def group(g: Number) -> None:
            rows = f.at("%prows", (g, f.index((samples, LANES))), size=ADDRESS)
            labels, rate = f.at("%plabels", (g, samples)), f.at("%prate", (g, "%isteps"))
            offset, loss = f.at("%poffset", (g, self.chain.outputs)), f.at("%ploss", (g, f.index((samples, 2))))
            steps = f.op(f"load i64, ptr {f.at('%pcounts', g, size=ADDRESS)}, align {ADDRESS}")
            w = f.at("%pw", (g, length))
            f.call(run, w, "%px", rows, labels, "%pscale", rate, offset, loss, "%pscratch", steps, "%ichunks")

        f.loop("%igroups", group)
        f.done()


def whole_units(count: int) -> int:
    """
    >>> whole_units(17)
    32
    """
    return -(-count // LANES) * LANES


def with_pooling_last(layers: tuple[Spatial, ...]) -> list[Spatial]:
    """Behind a convolution, a pooling of single pixels brings the images into the order of features."""
    if layers and isinstance(layers[-1], Convolution):
        last = layers[-1]
        return [*layers[:-1], replace(last, relu=False), Pooling(False, (1, 1), (1, 1), last.relu)]
    return list(layers)
