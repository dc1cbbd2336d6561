//! Checks of what goes into a step, comes out of it and lasts beyond it: all ranks that have a part of an input, an
//! output or a variable mean the same tensor.

use std::collections::BTreeMap;

use graphc_ir::ids::{LayoutId, RegisterId};
use graphc_ir::types::Samples;

use super::ErrorCollector;
use crate::{Action, Plan, Program, RegisterKind};

/// A part of something with a name.
struct NamedRegister<'a> {
    name: &'a str,
    register: RegisterId,
}

/// Checks inputs, outputs and variables of all ranks.
pub(super) fn check_edges(plan: &Plan, ranks_of: &[Vec<u32>], errors: &mut ErrorCollector) {
    check_inputs(plan, errors);
    check_on_ranks(plan, ranks_of, ("output", list_outputs), errors);
    check_on_ranks(plan, ranks_of, ("variable", list_variables), errors);
    for (index, program) in plan.programs.iter().enumerate() {
        for NamedRegister { name, register } in list_variables(program) {
            let layout = program.registers[register.index()].layout;
            let cut = plan.layouts[layout.index()].microbatch_dim.is_some();
            errors.require(!cut, format_args!("programs[{index}] {register} `{name}`"), || {
                "is a variable, but cut by microbatches".into()
            });
        }
    }
}

/// Checks that all parts of an input are of one tensor.
fn check_inputs(plan: &Plan, errors: &mut ErrorCollector) {
    let mut known = BTreeMap::new();
    for (index, program) in plan.programs.iter().enumerate() {
        for actor in &program.actors {
            let Action::Feed { input, samples } = &actor.action else { continue };
            let layout = program.registers[actor.outputs[0].index()].layout;
            let ty = plan.layouts[layout.index()].ty();
            let (first, of_first) =
                known.entry(input.as_str()).or_insert_with(|| (ty.clone(), *samples));
            let place = format_args!("programs[{index}] `{}`", actor.name);
            errors.require(*first == ty, place, || {
                format!("input `{input}` is {ty} here, and {first} elsewhere")
            });
            let place = format_args!("programs[{index}] `{}`", actor.name);
            let fits = !matches!(samples, Samples::Dim(dim) if *dim >= ty.shape.len());
            errors.require(fits && samples == of_first, place, || {
                format!("samples of input `{input}`, {ty}, are {samples:?} here, and {of_first:?} elsewhere")
            });
        }
    }
}

fn list_outputs(program: &Program) -> Vec<NamedRegister<'_>> {
    let named = program.actors.iter().filter_map(|actor| match &actor.action {
        Action::Fetch { output, .. } => {
            Some(NamedRegister { name: output, register: actor.inputs[0] })
        }
        _ => None,
    });
    named.collect()
}

fn list_variables(program: &Program) -> Vec<NamedRegister<'_>> {
    let registers = program.registers.iter().enumerate();
    let named = registers.filter_map(|(index, register)| match &register.kind {
        RegisterKind::Variable { name, .. } => {
            Some(NamedRegister { name, register: RegisterId::new(index) })
        }
        RegisterKind::Activation => None,
    });
    named.collect()
}

/// Checks that something with a name lies in one layout, in one part on each of its ranks.
fn check_on_ranks(
    plan: &Plan,
    ranks_of: &[Vec<u32>],
    (what, parts): (&str, fn(&Program) -> Vec<NamedRegister<'_>>),
    errors: &mut ErrorCollector,
) {
    // By name: the layout, and the ranks that have a part.
    let mut known: BTreeMap<&str, (LayoutId, usize)> = BTreeMap::new();
    for (index, (program, ranks)) in plan.programs.iter().zip(ranks_of).enumerate() {
        let mut own: Vec<&str> = Vec::new();
        for NamedRegister { name, register } in parts(program) {
            let layout = program.registers[register.index()].layout;
            let place = format!("programs[{index}] {register}");
            let (first, count) = known.entry(name).or_insert((layout, 0));
            *count += ranks.len();
            errors.require(*first == layout, &place, || {
                format!("{what} `{name}` lies in another layout than on other ranks")
            });
            own.push(name);
        }
        own.sort_unstable();
        let twice = own.windows(2).find(|pair| pair[0] == pair[1]);
        errors.require(twice.is_none(), format_args!("programs[{index}]"), || {
            format!("{what} `{}` is there twice", twice.map_or("", |pair| pair[0]))
        });
    }
    for (name, (layout, count)) in known {
        let ranks = plan.layouts[layout.index()].ranks.len();
        errors.require(count == ranks, format_args!("{what} `{name}`"), || {
            format!("{count} of the {ranks} ranks of its layout have it")
        });
    }
}
