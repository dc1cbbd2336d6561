//! Random edits of plans: such as a hand would make, and any value of the file.

use graphc::ir::ids::{ActorId, LayoutId, RegisterId};
use graphc::plan::{Action, Plan, Program, read_plan};
use proptest::prelude::*;
use serde_json::Value;

/// An edit: what is done, where, and with what.
#[derive(Clone, Debug)]
pub struct Edit {
    kind: u8,
    program: usize,
    first: usize,
    second: usize,
    number: u64,
}

/// Returns a strategy that draws edits.
pub fn edit() -> impl Strategy<Value = Edit> {
    let number = prop_oneof![
        Just(0u64),
        Just(1),
        0u64..9,
        (0u64..64).prop_map(|n| n * 64),
        (0u32..64).prop_map(|n| 1 << n),
        any::<u64>(),
    ];
    (0u8..34, any::<usize>(), any::<usize>(), any::<usize>(), number).prop_map(
        |(kind, program, first, second, number)| Edit { kind, program, first, second, number },
    )
}

fn of<T>(list: &mut [T], index: usize) -> Option<&mut T> {
    let count = list.len();
    list.get_mut(index.checked_rem(count)?)
}

fn swap<T>(list: &mut [T], first: usize, second: usize) -> Option<()> {
    let count = list.len();
    list.swap(first.checked_rem(count)?, second.checked_rem(count)?);
    Some(())
}

impl Edit {
    /// The edited plan; `None` where there is nothing to edit, or the file would be no plan.
    pub fn apply(&self, plan: &Plan, value: &Value, places: &[String]) -> Option<Plan> {
        if self.kind >= 24 {
            return self.edit_file(value, places);
        }
        let mut plan = plan.clone();
        let (microbatches, stages) = (plan.microbatches as u64, self.first);
        match self.kind {
            0 => {
                plan.microbatches =
                    if stages % 2 == 0 { microbatches + 1 } else { self.number } as usize
            }
            1 => swap(&mut plan.ranks, self.first, self.second)?,
            2 => of(&mut plan.channels, self.first)?.slots = self.number as u32,
            3 => {
                let channel = of(&mut plan.channels, self.first)?;
                std::mem::swap(&mut channel.from, &mut channel.to);
            }
            4 => of(&mut plan.channels, self.first)?.sequence = self.number as u32,
            5 => swap(&mut of(&mut plan.layouts, self.first)?.ranks, self.first / 7, self.second)?,
            6 => {
                let layout = of(&mut plan.layouts, self.first)?;
                *of(&mut layout.shape, self.second)? = self.number as usize;
            }
            7 => swap(&mut of(&mut plan.layouts, self.first)?.sbp.0, self.first / 7, self.second)?,
            8 => swap(&mut plan.layouts, self.first, self.second)?,
            9 => swap(&mut plan.channels, self.first, self.second)?,
            _ => self.edit_program(of(&mut plan.programs, self.program)?)?,
        }
        let bytes = plan.programs.iter().map(|program| program.arena_bytes);
        plan.predicted.peak_memory_bytes = bytes.collect();
        Some(plan)
    }

    fn edit_program(&self, program: &mut Program) -> Option<()> {
        let Self { first, second, number, .. } = *self;
        match self.kind {
            10 => {
                // One register on another, or beyond the arena.
                let other = of(&mut program.registers, second)?.offset;
                let register = of(&mut program.registers, first)?;
                register.offset = if number % 3 == 0 { other } else { number / 64 * 64 };
            }
            11 => {
                let other = of(&mut program.registers, second)?.clone();
                let shared = RegisterId((second % program.registers.len()) as u32);
                let register = of(&mut program.registers, first)?;
                (register.offset, register.slot_bytes) = (other.offset, other.slot_bytes);
                (register.slots, register.shares) = (other.slots, Some(shared));
            }
            12 => of(&mut program.registers, first)?.slots = number as u32,
            13 => of(&mut program.registers, first)?.layout = LayoutId(number as u32),
            14 => {
                let layout = of(&mut program.registers, second)?.layout;
                of(&mut program.registers, first)?.layout = layout;
            }
            15 => program.arena_bytes = number,
            16 => {
                let stream = of(&mut program.streams, first)?;
                let block = of(&mut stream.blocks, first / 7)?;
                swap(block, first / 77, second)?;
            }
            17 => {
                let stream = of(&mut program.streams, first)?;
                swap(&mut stream.order, first / 7, second)?;
            }
            18 => {
                let actor = of(&mut program.actors, first)?;
                swap(&mut actor.inputs, first / 7, second)?;
            }
            19 => {
                let input = RegisterId((second % program.registers.len()) as u32);
                let actor = of(&mut program.actors, first)?;
                *of(&mut actor.inputs, first / 7)? = input;
            }
            20 => {
                let output = RegisterId((second % program.registers.len()) as u32);
                let actor = of(&mut program.actors, first)?;
                *of(&mut actor.outputs, first / 7)? = output;
            }
            21 => {
                // Two collectives change their numbers, or one gets another.
                let count = program.actors.len();
                let mut sequences =
                    program.actors.iter_mut().filter_map(|actor| match &mut actor.action {
                        Action::Collective { sequence, .. } => Some(sequence),
                        _ => None,
                    });
                let one = sequences.nth(first % count.min(4))?;
                match sequences.nth(second % count.min(4)) {
                    Some(other) => std::mem::swap(one, other),
                    None => *one = number as u32,
                }
            }
            22 => {
                let after = ActorId((second % program.actors.len()) as u32);
                of(&mut program.actors, first)?.after = (number % 4 > 0).then_some(after);
            }
            _ => swap(&mut program.streams, first, second)?,
        }
        Some(())
    }

    /// Changes one value of the file.
    fn edit_file(&self, value: &Value, places: &[String]) -> Option<Plan> {
        let mut file = value.clone();
        let place = &places[self.first % places.len()];
        let other = value.pointer(&places[self.second % places.len()])?.clone();
        let found = file.pointer_mut(place)?;
        let edited = match (found.clone(), self.number % 4) {
            (Value::Number(old), 0) => Value::from(old.as_i64().unwrap_or(0).wrapping_add(1)),
            (Value::Number(old), 1) => Value::from(old.as_i64().unwrap_or(0).wrapping_sub(1)),
            (Value::Number(_), _) => Value::from(self.number),
            (Value::Bool(old), _) => Value::from(!old),
            (Value::Array(mut items), 0) if !items.is_empty() => {
                items.remove(self.second % items.len());
                Value::from(items)
            }
            (Value::Array(mut items), 1) if !items.is_empty() => {
                items.push(items[self.second % items.len()].clone());
                Value::from(items)
            }
            (Value::Array(mut items), _) => {
                swap(&mut items, self.second, self.program)?;
                Value::from(items)
            }
            (Value::String(_) | Value::Null, _) => other,
            (Value::Object(_), _) => return None,
        };
        *found = edited;
        read_plan(&file.to_string()).ok()
    }
}

/// Returns the places of all values that ranks go by.
pub fn places(value: &Value) -> Vec<String> {
    let mut places = Vec::new();
    for part in ["microbatches", "layouts", "channels", "programs", "ranks", "stages", "mesh"] {
        collect(&value[part], format!("/{part}"), &mut places);
    }
    places
}

fn collect(value: &Value, place: String, places: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect(item, format!("{place}/{index}"), places);
            }
        }
        Value::Object(fields) => {
            for (name, item) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                collect(item, format!("{place}/{name}"), places);
            }
        }
        _ => {}
    }
    places.push(place);
}
