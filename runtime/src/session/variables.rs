//! Variables in the memory of their ranks.

use std::collections::BTreeMap;
use std::sync::Arc;

use graphc_comm::memory::ArenaRange;
use graphc_comm::transport::{ExchangeGroup, Offer, Transport, VARIABLES};
use graphc_host::tensor::{HostTensor, TensorError, write_element};
use graphc_host::threads::side_by_side;
use graphc_ir::ops::{Distribution, Init};
use graphc_ir::random::RandomStream;
use graphc_ir::shard::Rect;
use graphc_ir::text::nearest_name;
use graphc_ir::types::{TensorType, row_major_strides};
use graphc_plan::{Layout, Plan, RegisterKind, TensorKind};

use crate::checkpoint::HeldShard;
use crate::device::{DeviceMemory, Port};
use crate::error::RuntimeError;
use crate::rectangles::{Move, fill_identity, masked_kind};
use crate::sharded::ShardedTensor;
use crate::worker::{first_holder, ranks_hold_same};

/// Elements that are not worth a thread of their own.
const MIN_DRAWN: usize = 1 << 16;

/// Variables that an error names.
const NAMED: usize = 5;

/// Returns those of a model's weights that a plan has variables for: one of inference, say, lacks what training alone
/// reads.
pub fn known_weights(
    plan: &Plan,
    weights: &BTreeMap<String, HostTensor>,
) -> BTreeMap<String, HostTensor> {
    let known = plan.variable_names();
    let weights = weights.iter().filter(|(name, _)| known.contains(name.as_str()));
    weights.map(|(name, weight)| (name.clone(), weight.clone())).collect()
}

/// All variables of a plan.
pub(super) struct Variables {
    by_name: BTreeMap<String, VariableEntry>,
    /// The links to the processes that hold the other shards.
    others: Option<OtherProcesses>,
}

/// The way to the shards of other processes.
struct OtherProcesses {
    group: Box<dyn ExchangeGroup>,
    rank: u32,
    world: u32,
}

struct VariableEntry {
    role: TensorKind,
    /// Whether steps change it.
    updated: bool,
    init: Init,
    layout: Layout,
    /// The shards of the layout's ranks that are here, in the layout's order once all are there.
    shards: Vec<VariableShard>,
}

struct VariableShard {
    rank: u32,
    memory: Arc<DeviceMemory>,
    place: ArenaRange,
    rect: Rect,
}

impl Variables {
    /// Lists the variables of all ranks, without memory.
    ///
    /// # Errors
    /// Where ranks do not agree on a variable's layout.
    pub(super) fn from_plan(plan: &Plan) -> Result<Self, RuntimeError> {
        let updated = plan.updated_variables();
        let mut by_name: BTreeMap<String, VariableEntry> = BTreeMap::new();
        for register in plan.programs.iter().flat_map(|program| &program.registers) {
            let RegisterKind::Variable { name, init, role } = &register.kind else { continue };
            let layout = plan.layouts.get(register.layout.index());
            let layout = layout.ok_or(RuntimeError::invalid_plan("a register without a layout"))?;
            let entry = by_name.entry(name.clone()).or_insert_with(|| VariableEntry {
                role: *role,
                updated: updated.contains(name.as_str()),
                init: init.clone(),
                layout: layout.clone(),
                shards: Vec::new(),
            });
            if entry.layout != *layout {
                return Err(RuntimeError::invalid_plan(format!(
                    "variable `{name}` lies in two layouts"
                )));
            }
        }
        Ok(Self { by_name, others: None })
    }

    /// Joins the other processes, which have shards too.
    ///
    /// # Errors
    /// Where they cannot be reached.
    pub(super) fn join_processes(
        &mut self,
        plan: &Plan,
        transport: &Arc<dyn Transport>,
    ) -> Result<(), RuntimeError> {
        let world = plan.world_size as u32;
        let group = transport.join_group(VARIABLES, &(0..world).collect::<Vec<_>>())?;
        self.others = Some(OtherProcesses { group, rank: transport.rank(), world });
        Ok(())
    }

    /// Adds the memory of one rank.
    ///
    /// # Errors
    /// Where a rank has a variable twice.
    pub(super) fn add_rank(
        &mut self,
        plan: &Plan,
        rank: u32,
        ports: &[Port],
        memory: &Arc<DeviceMemory>,
    ) -> Result<(), RuntimeError> {
        let program = plan.program_of(rank);
        for (register, port) in program.registers.iter().zip(ports) {
            let RegisterKind::Variable { name, .. } = &register.kind else { continue };
            let unknown = || RuntimeError::VariableUnknown { name: name.clone(), nearest: None };
            let entry = self.by_name.get_mut(name).ok_or_else(unknown)?;
            if entry.shards.iter().any(|shard| shard.rank == rank) {
                let reason = format!("variable `{name}` lies twice on rank {rank}");
                return Err(RuntimeError::invalid_plan(reason));
            }
            let (place, rect) = (port.span(), port.rect(0).clone());
            entry.shards.push(VariableShard { rank, memory: Arc::clone(memory), place, rect });
        }
        Ok(())
    }

    /// Puts shards in the order of their layouts. `here` are the ranks of this process.
    ///
    /// # Errors
    /// Where one of them lacks a shard of its layout.
    pub(super) fn order_shards(&mut self, here: &[u32]) -> Result<(), RuntimeError> {
        for (name, entry) in &mut self.by_name {
            let order = &entry.layout.ranks;
            let position =
                |shard: &VariableShard| order.iter().position(|&rank| rank == shard.rank);
            entry.shards.sort_by_key(position);
            let wanted = order.iter().filter(|rank| here.contains(rank)).count();
            if entry.shards.len() != wanted {
                let reason = format!("variable `{name}` has no register on some of its ranks");
                return Err(RuntimeError::invalid_plan(reason));
            }
        }
        Ok(())
    }

    /// Writes the first content of every variable: the weight of its name, or what its initialization says.
    ///
    /// # Errors
    /// Where a weight is missing, of another type, or of no variable.
    pub(super) fn fill_initial(
        &self,
        weights: &BTreeMap<String, HostTensor>,
        seed: u64,
    ) -> Result<(), RuntimeError> {
        self.check_known(weights)?;
        for (name, entry) in &self.by_name {
            match weights.get(name) {
                Some(weight) => entry.write_whole(name, weight)?,
                None => entry.begin_without_weight(name, seed)?,
            }
        }
        Ok(())
    }

    fn check_known(&self, weights: &BTreeMap<String, HostTensor>) -> Result<(), RuntimeError> {
        let mut unknown = weights.keys().filter(|name| !self.by_name.contains_key(*name));
        let Some(first) = unknown.next() else { return Ok(()) };
        let parameters = self.by_name.iter().filter(|(_, e)| e.role == TensorKind::Parameter);
        let mut known: Vec<String> =
            parameters.take(NAMED).map(|(name, _)| format!("`{name}`")).collect();
        if self.by_name.len() > known.len() {
            known.push("..".into());
        }
        let (name, nearest) = (first.clone(), self.nearest_name(first));
        let (others, known) = (unknown.count(), known.join(", "));
        Err(RuntimeError::WeightsUnknown { name, nearest, others, known })
    }

    pub(super) fn list(&self) -> BTreeMap<String, (TensorKind, TensorType)> {
        let entry = |(name, entry): (&String, &VariableEntry)| {
            (name.clone(), (entry.role, entry.layout.ty()))
        };
        self.by_name.iter().map(entry).collect()
    }

    /// Gathers the whole of a variable. No worker may be in a step.
    pub(super) fn read(&mut self, name: &str) -> Result<HostTensor, RuntimeError> {
        self.find_entry(name)?;
        let entry = &self.by_name[name];
        let shards = match &mut self.others {
            Some(others) => others.gather_entry(entry)?,
            None => {
                let bytes = |shard: &VariableShard| shard.memory.read(shard.place, <[u8]>::to_vec);
                entry.shards.iter().map(bytes).collect()
            }
        };
        let layout = &entry.layout;
        let tensor = |(bytes, &rank): (Vec<u8>, &u32)| {
            let extent = layout.rect(rank, 0, 1).map_or_else(Vec::new, |rect| rect.extent);
            HostTensor::new(layout.dtype, extent, bytes)
        };
        let shards = shards.into_iter().zip(&layout.ranks).map(tensor);
        let shards = shards.collect::<Result<_, TensorError>>()?;
        Ok(ShardedTensor::of_layout(layout.clone(), shards)?.to_host()?)
    }

    /// Calls `read` with the whole of a variable, where it lies if that is possible. No worker may be in a step.
    pub(super) fn with_whole(
        &mut self,
        name: &str,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RuntimeError> {
        let entry = self.find_entry(name)?;
        let is_whole = |shard: &&VariableShard| {
            shard.rect == Rect::whole(&entry.layout.shape) && !entry.layout.sbp.is_partial()
        };
        match entry.shards.iter().find(is_whole).filter(|_| self.others.is_none()) {
            Some(shard) => shard.memory.read(shard.place, read),
            None => read(self.read(name)?.bytes()),
        }
        Ok(())
    }

    /// Overwrites a variable. No worker may be in a step.
    pub(super) fn write(&self, name: &str, value: &HostTensor) -> Result<(), RuntimeError> {
        self.find_entry(name)?.write_whole(name, value)
    }

    /// Overwrites a variable with that of another session. No worker of either may be in a step.
    pub(super) fn copy_from(&self, from: &mut Self, name: &str) -> Result<(), RuntimeError> {
        let into = self.find_entry(name)?;
        let ranks =
            |entry: &VariableEntry| -> Vec<u32> { entry.shards.iter().map(|s| s.rank).collect() };
        let alike =
            |from: &&VariableEntry| from.layout == into.layout && ranks(from) == ranks(into);
        match from.by_name.get(name).filter(alike) {
            // Shards lie beside each other: nothing is brought together.
            Some(entry) => {
                let pairs = into.shards.iter().zip(&entry.shards);
                pairs.for_each(|(into, from)| into.copy_from(from));
                Ok(())
            }
            None => into.write_whole(name, &from.read(name)?),
        }
    }

    /// Iterates over every shard, by name, then in the order of its layout.
    pub(super) fn iter_shards(&self) -> impl Iterator<Item = HeldShard<'_>> {
        let shards = self.by_name.iter().flat_map(|(n, e)| e.shards.iter().map(move |s| (n, e, s)));
        shards.map(|(name, entry, shard)| HeldShard {
            name,
            kind: entry.role,
            layout: &entry.layout,
            rank: shard.rank,
            rect: &shard.rect,
            memory: &shard.memory,
            place: shard.place,
            updated: entry.updated,
        })
    }

    fn find_entry(&self, name: &str) -> Result<&VariableEntry, RuntimeError> {
        let unknown = || {
            let nearest = self.nearest_name(name);
            RuntimeError::VariableUnknown { name: name.to_owned(), nearest }
        };
        self.by_name.get(name).ok_or_else(unknown)
    }

    /// Returns the variable that has nearly this name.
    fn nearest_name(&self, name: &str) -> Option<String> {
        nearest_name(name, self.by_name.keys().map(String::as_str)).map(str::to_owned)
    }
}

impl OtherProcesses {
    /// Gathers the shards of all ranks of the layout.
    fn gather_entry(&mut self, entry: &VariableEntry) -> Result<Vec<Vec<u8>>, RuntimeError> {
        match entry.shards.iter().find(|shard| shard.rank == self.rank) {
            Some(own) => {
                own.memory.read(own.place, |bytes| self.gather_shards(&entry.layout, Some(bytes)))
            }
            None => self.gather_shards(&entry.layout, None),
        }
    }

    /// Brings shards together: who holds one first gives it to all who do not hold the same.
    fn gather_shards(
        &mut self,
        layout: &Layout,
        own: Option<&[u8]>,
    ) -> Result<Vec<Vec<u8>>, RuntimeError> {
        let rank = self.rank;
        let source = |holder: u32| first_holder(layout, holder).unwrap_or(holder);
        let gives = own.is_some() && source(rank) == rank;
        let lacks = |reader: &u32| gives && !ranks_hold_same(layout, rank, *reader);
        let offer = |reader: u32| Offer { peer: reader as usize, pieces: 0..1 };
        let offers: Vec<Offer> = (0..self.world).filter(lacks).map(offer).collect();
        let mut takes: Vec<u32> = layout.ranks.iter().map(|&holder| source(holder)).collect();
        takes.sort_unstable();
        takes.dedup();
        takes.retain(|&holder| !ranks_hold_same(layout, rank, holder) && holder != rank);
        let mut taken: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        let indices: Vec<usize> = takes.iter().map(|&holder| holder as usize).collect();
        let piece = [own.unwrap_or_default()];
        self.group.exchange(&piece, &offers, &indices, &mut |index, pieces| {
            taken.insert(takes[index], pieces.concat());
        })?;
        let shard = |&holder: &u32| match taken.get(&source(holder)) {
            Some(bytes) => bytes.clone(),
            None => own.unwrap_or_default().to_vec(),
        };
        Ok(layout.ranks.iter().map(shard).collect())
    }
}

impl VariableEntry {
    fn write_whole(&self, name: &str, value: &HostTensor) -> Result<(), RuntimeError> {
        let expected = self.layout.ty();
        if value.ty() != expected {
            let (name, found) = (name.to_owned(), value.ty());
            return Err(RuntimeError::VariableType { name, expected, found });
        }
        let whole = Rect::whole(&self.layout.shape);
        for shard in &self.shards {
            shard.memory.write(shard.place, |target| match masked_kind(&self.layout, shard.rank) {
                Some(kind) => fill_identity(self.layout.dtype, kind, target),
                None if target.is_empty() => {}
                None => {
                    let copy = Move::new(self.layout.dtype, &shard.rect, &whole, &shard.rect);
                    copy.copy(value.bytes(), target);
                }
            });
        }
        Ok(())
    }

    /// Writes the first content that no file holds.
    fn begin_without_weight(&self, name: &str, seed: u64) -> Result<(), RuntimeError> {
        let ty = self.layout.ty();
        match &self.init {
            Init::Weights => Err(RuntimeError::WeightMissing { name: name.to_owned(), ty }),
            Init::Table(table) => self
                .write_whole(name, &HostTensor::new(ty.dtype, ty.shape, table.bytes().to_vec())?),
            Init::Fill(_) | Init::Normal { .. } | Init::Uniform { .. } => {
                self.write_initial(name, seed);
                Ok(())
            }
        }
    }

    /// Writes the first content of all shards, which is one number or random.
    fn write_initial(&self, name: &str, seed: u64) {
        let mut drawn: Vec<(&Rect, Vec<&VariableShard>)> = Vec::new();
        for shard in self.shards.iter().filter(|shard| shard.place.bytes > 0) {
            let alike = drawn.iter_mut().find(|(rect, _)| **rect == shard.rect);
            match (masked_kind(&self.layout, shard.rank), alike) {
                (Some(kind), _) => {
                    let fill = |target: &mut [u8]| fill_identity(self.layout.dtype, kind, target);
                    shard.memory.write(shard.place, fill);
                }
                (None, Some((_, shards))) => shards.push(shard),
                (None, None) => drawn.push((&shard.rect, vec![shard])),
            }
        }
        if let Init::Fill(value) = self.init {
            let mut element = vec![0; self.layout.dtype.size()];
            write_element(self.layout.dtype, value.0, &mut element);
            drawn.iter().flat_map(|(_, shards)| shards).for_each(|shard| shard.fill_with(&element));
        } else if let Some((distribution, stream)) = self.init.random_stream(name, seed) {
            drawn.iter().for_each(|(_, shards)| self.draw_elements(&distribution, &stream, shards));
        }
    }

    /// Draws the elements of shards of the same rectangle, each from its place in the whole. Random numbers are slow to
    /// draw: once for all shards, and on all cores. An element is a function of its place alone, so any thread may draw
    /// any part.
    fn draw_elements(
        &self,
        distribution: &Distribution,
        stream: &RandomStream,
        shards: &[&VariableShard],
    ) {
        let (dtype, rect) = (self.layout.dtype, &shards[0].rect);
        let (elements, size) = (rect.elements(), dtype.size());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let part = elements.div_ceil(threads).max(MIN_DRAWN);
        let draw = |number: usize| {
            let begin = number * part;
            let end = elements.min(begin + part);
            let bytes = |shard: &VariableShard| shard.place.subrange(&(begin * size..end * size));
            let mut places = ShardPositions::new(&self.layout.shape, rect, begin);
            shards[0].memory.write(bytes(shards[0]), |target| {
                for element in target.chunks_exact_mut(size) {
                    let drawn = distribution.draw(stream, places.next_position());
                    write_element(dtype, f64::from(drawn), element);
                }
                for other in &shards[1..] {
                    other.memory.write(bytes(other), |copy| copy.copy_from_slice(target));
                }
            });
        };
        side_by_side(elements.div_ceil(part), draw);
    }
}

impl VariableShard {
    /// Takes the elements of a shard of the same rectangle.
    fn copy_from(&self, from: &Self) {
        from.memory.read(from.place, |bytes| {
            self.memory.write(self.place, |target| target.copy_from_slice(bytes));
        });
    }

    /// Fills memory to which nothing was written before.
    fn fill_with(&self, element: &[u8]) {
        if element.iter().all(|&byte| byte == 0) {
            return self.memory.begin_with_zeros(self.place);
        }
        self.memory.write(self.place, |target| {
            target.chunks_exact_mut(element.len()).for_each(|place| place.copy_from_slice(element));
        });
    }
}

/// The row-major positions in the whole tensor of a shard's elements, one after the other.
struct ShardPositions<'a> {
    rect: &'a Rect,
    whole: Vec<usize>,
    own: Vec<usize>,
    /// The next element, and the end of its row.
    local: usize,
    row_end: usize,
    place: u64,
}

impl<'a> ShardPositions<'a> {
    fn new(shape: &[usize], rect: &'a Rect, local: usize) -> Self {
        let (whole, own) = (row_major_strides(shape), row_major_strides(&rect.extent));
        let mut places = Self { rect, whole, own, local, row_end: 0, place: 0 };
        places.seek_row();
        places
    }

    fn next_position(&mut self) -> u64 {
        if self.local == self.row_end {
            self.seek_row();
        }
        self.local += 1;
        self.place += 1;
        self.place - 1
    }

    /// Finds the place of the next element, at which a row may begin.
    fn seek_row(&mut self) {
        let extent = &self.rect.extent;
        let coordinate = |dim: usize| self.local / self.own[dim] % extent[dim];
        let dims = 0..extent.len();
        let place = dims.map(|dim| (coordinate(dim) + self.rect.origin[dim]) * self.whole[dim]);
        self.place = place.sum::<usize>() as u64;
        let row = extent.last().copied().unwrap_or(1);
        self.row_end = (self.local / row + 1) * row;
    }
}
