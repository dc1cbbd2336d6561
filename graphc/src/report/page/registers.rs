//! Lists the registers of programs for a page, so that each event can name what it makes, reads and changes, also what the plan
//! does not list as a tensor: gradients on the way, copies in other layouts.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::ids::RegisterId;
use graphc_plan::{Actor, Plan, Program, Register};

use super::places::PlanPlaces;
use super::table::InternTable;

/// A register: the number of the listed tensor that it holds or null, its name where it holds none, else null, the numbers of its
/// type and of its layout, bytes of one content on a rank.
pub(crate) type RegisterRow = (Option<usize>, Option<String>, usize, usize, u64);

/// The numbers of the registers that an actor makes, reads and changes.
pub type Touched = (Vec<usize>, Vec<usize>, Vec<usize>);

/// Lists the registers of those programs that are shown. Types and layouts that are new become known to `places`.
pub(super) fn list_registers(
    plan: &Plan,
    shown: impl Fn(usize) -> bool,
    places: &mut PlanPlaces,
) -> Vec<Vec<RegisterRow>> {
    let listed = plan.tensors.iter().enumerate().rev();
    let numbers: BTreeMap<&str, usize> =
        listed.map(|(number, tensor)| (tensor.name.as_str(), number)).collect();
    let mut layouts = InternTable::new(std::mem::take(&mut places.layouts));
    let mut types = InternTable::new(std::mem::take(&mut places.types));
    let mut row = |register: &Register| {
        let layout = &plan.layouts[register.layout.index()];
        let tensor = numbers.get(register.name.as_str()).copied();
        let name = tensor.is_none().then(|| register.name.clone());
        let ty = (layout.dtype.to_string(), layout.dtype.size(), layout.shape.clone());
        let bytes = register.shape.iter().product::<usize>() * layout.dtype.size();
        (tensor, name, types.intern(ty), layouts.intern(layout.sbp.to_string()), bytes as u64)
    };
    let mut of_program = |(index, program): (usize, &Program)| match shown(index) {
        true => program.registers.iter().map(&mut row).collect(),
        false => Vec::new(),
    };
    let all = plan.programs.iter().enumerate().map(&mut of_program).collect();
    (places.layouts, places.types) = (layouts.all, types.all);
    all
}

/// The registers of an actor.
pub(super) fn touched_registers(actor: &Actor) -> Touched {
    let numbers = |registers: &[RegisterId]| {
        let mut all: Vec<usize> = registers.iter().map(|register| register.index()).collect();
        let mut seen = BTreeSet::new();
        all.retain(|&register| seen.insert(register));
        all
    };
    (numbers(&actor.outputs), numbers(&actor.inputs), numbers(&actor.updates))
}
