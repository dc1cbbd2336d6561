//! docs/plan.md.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;

use crate::schema::leaf;
use crate::source::{Field, Form, Item, Variant, parts};

const INTRODUCTION: &str = "\
# The plan

A plan is what `graphc compile -o plan.json` writes: all that engines need to execute, simulate or show a compiled job. This page names
every field of version VERSION; [plan.schema.json](plan.schema.json) says the same to programs. Both are written from the doc comments
of the types (`ir/plan/src/lib.rs` and what it refers to) by `UPDATE_EXPECT=1 cargo test --test plan_schema`, and that test holds them to
the source. `graphc_torch` (`python/`) is a second engine that reads it.

Numbers of payloads may be `\"inf\"`, `\"-inf\"` or `\"nan\"`. A field that is marked *optional* is left out where it has its default. A
variant with a payload is an object of its name and the payload, one without is its name. Layouts are `\"B\"`, `\"S(dim)\"` and
`\"P(sum|max|min)\"`, one for each mesh axis; cuts of one dim nest in the order of the axes, microbatches before all of them, and the first
parts of an uneven cut are longer. Ranks are numbers or runs `[first, count, stride]`.

A plan from `graphc compile` ends in a seal: the last field `seal`, alone on its line, is the SHA-256 of all bytes of the file before the
comma in front of it. It says that graphc has proven all of this text sound: registers that are alive at one time do not overlap, ops fit their
operands, no rank waits for ever. An engine that cannot prove this itself must compare the seal, as `graphc_torch` does. It is over bytes, so no
engine needs to write numbers as another does; a plan that was changed, or laid out anew, is refused until `graphc verify --seal plan.json` has
checked it and sealed it again. It keeps mistakes out, and no deceit: it is no signature.

What an engine must hold to:

- a content `n` of a register lies at `offset + (n mod slots) slot_bytes`; registers that are filled once a microbatch count on from
  step to step, variables have one content;
- within a stream, blocks run in order; an actor waits until what it reads is there, all have read what lies where it writes, and whom
  it stands behind (`after`) has acted;
- a collective goes over the ranks that differ in its axis alone, in the order of that coordinate; partial values are combined in that
  order, sums of halves in f32 and rounded once; towards a partial layout the first rank has the value and the others what changes nothing;
- a channel holds `slots` contents; its rectangles are those in which the two layouts overlap, of ranks that hold the same the receiver
  itself if it is among them, else the one at the receiver's place modulo their number;
- random numbers are Philox4x32-10 of (seed, key, step, row-major element of the whole tensor): `ir/src/random.rs`; a variable's key is
  the FNV-1a hash of its name.
";

/// The page.
pub fn write(items: &BTreeMap<String, Item>, version: u32) -> String {
    let mut text = INTRODUCTION.replace("VERSION", &version.to_string());
    let (types, payloads) = reachable(items);
    text.push_str("\n## Types\n");
    types.iter().for_each(|name| item(&mut text, &items[*name]));
    text.push_str("\n## Ops\n\nAn op is an object with its name as `op`, and these fields.\n");
    if let Form::Enum(variants) = &items["Op"].form {
        variants.iter().for_each(|variant| op(&mut text, items, variant));
    }
    text.push_str("\n## Types of ops' fields\n");
    payloads.iter().for_each(|name| item(&mut text, &items[*name]));
    text
}

/// Types in the order in which the plan comes to them: those of ops apart.
fn reachable(items: &BTreeMap<String, Item>) -> (Vec<&str>, Vec<&str>) {
    let types = from(items, "Plan", &mut BTreeSet::from(["Op"]));
    let mut seen: BTreeSet<&str> = types.iter().copied().collect();
    let mut payloads = from(items, "Op", &mut seen);
    // Those of payloads are named by their ops.
    let of_ops: BTreeSet<&str> = match &items["Op"].form {
        Form::Enum(variants) => {
            variants.iter().filter_map(|variant| variant.ty.as_deref()).collect()
        }
        Form::Struct(_) => BTreeSet::new(),
    };
    payloads.retain(|name| *name != "Op" && !of_ops.contains(name));
    (types, payloads)
}

fn from<'a>(
    items: &'a BTreeMap<String, Item>,
    first: &'a str,
    seen: &mut BTreeSet<&'a str>,
) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut open = VecDeque::from([first]);
    while let Some(name) = open.pop_front() {
        if (!seen.insert(name) && name != first) || !items.contains_key(name) {
            continue;
        }
        found.push(name);
        let types: Vec<&str> = match &items[name].form {
            Form::Struct(fields) => of_fields(fields).collect(),
            Form::Enum(variants) => variants.iter().flat_map(of_variant).collect(),
        };
        open.extend(types.into_iter().filter(|ty| leaf(ty).is_none()));
    }
    found
}

fn of_fields(fields: &[Field]) -> impl Iterator<Item = &str> {
    fields.iter().filter(|field| !field.runs).flat_map(|field| innermost(&field.ty))
}

fn of_variant(variant: &Variant) -> Vec<&str> {
    variant.ty.iter().flat_map(|ty| innermost(ty)).chain(of_fields(&variant.fields)).collect()
}

fn innermost(ty: &str) -> Vec<&str> {
    match parts(ty) {
        (None, inner) => inner,
        (Some(_), inner) => inner.into_iter().flat_map(innermost).collect(),
    }
}

fn item(text: &mut String, item: &Item) {
    let _ = writeln!(text, "\n### {}\n\n{}", item.name, item.docs);
    match &item.form {
        Form::Struct(fields) => table(text, fields),
        Form::Enum(variants) => {
            text.push('\n');
            variants.iter().for_each(|variant| line(text, variant));
        }
    }
}

fn op(text: &mut String, items: &BTreeMap<String, Item>, variant: &Variant) {
    let payload = variant.ty.as_ref().map(|ty| &items[ty]);
    let docs = payload.map_or(&variant.docs, |item| &item.docs);
    let _ = writeln!(text, "\n#### `{}`\n\n{} {docs}", variant.name, variant.docs);
    if let Some(Item { form: Form::Struct(fields), .. }) = payload {
        table(text, fields);
    }
}

fn table(text: &mut String, fields: &[Field]) {
    if fields.is_empty() {
        return;
    }
    text.push_str("\n| field | type | |\n|---|---|---|\n");
    for field in fields {
        let ty = if field.runs { "ranks".into() } else { words(&field.ty) };
        let optional = if field.optional { ", optional" } else { "" };
        let docs = field.docs.replace('|', "\\|");
        let _ = writeln!(text, "| `{}` | {ty}{optional} | {docs} |", field.name);
    }
}

fn line(text: &mut String, variant: &Variant) {
    let payload = variant.ty.as_ref().map_or(String::new(), |ty| format!(" ({})", words(ty)));
    let _ = writeln!(text, "- `{}`{payload}: {}", variant.name, variant.docs);
    for field in &variant.fields {
        let _ = writeln!(text, "  - `{}` ({}): {}", field.name, words(&field.ty), field.docs);
    }
}

/// A type in words.
fn words(ty: &str) -> String {
    let (outer, inner) = parts(ty);
    let first = || words(inner[0]);
    match (outer, ty) {
        (Some("Vec"), _) => format!("list of {}", first()),
        (Some("Option"), _) => format!("{} or null", first()),
        (Some("map"), _) => format!("object of {}", first()),
        (Some("array"), _) => format!("{} times {}", inner[1], first()),
        (Some("tuple"), _) => inner.iter().map(|ty| words(ty)).collect::<Vec<_>>().join(", "),
        (None, "usize" | "u32" | "u64" | "i32" | "i64" | "OperandSource") => "whole number".into(),
        (None, "NonZeroU32") => "whole number from 1 on".into(),
        (None, "f64" | "Scalar") => "number".into(),
        (None, "LearningRate") => "number, or text".into(),
        (None, "bool") => "true or false".into(),
        (None, "String" | "LrSchedule" | "Schedule" | "Strategy") => "text".into(),
        (None, "Table") => "elements in Base64".into(),
        (None, "Sbp" | "NdSbp") => "layout".into(),
        (None, "RegisterId" | "ActorId" | "ChannelId" | "ProgramId" | "LayoutId") => {
            format!("index of a {}", ty.trim_end_matches("Id").to_lowercase())
        }
        _ => ty.to_owned(),
    }
}
