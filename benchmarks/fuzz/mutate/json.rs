//! Edits of JSON: any value of a document.

use serde_json::{Map, Number, Value};

use super::random::Random;

/// A few edits, with values of another document.
pub fn edit(document: &mut Value, other: &Value, random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        let spare = [&*document, other][random.below(2)];
        let spare = nth(spare, &mut random.below(count(spare))).cloned();
        let mut at = random.below(count(document));
        if let Some(place) = nth_mut(document, &mut at) {
            edit_value(place, spare.unwrap_or(Value::Null), random);
        }
    }
}

fn edit_value(place: &mut Value, spare: Value, random: &mut Random) {
    if random.one_in(6) {
        *place = if random.one_in(8) { Value::Null } else { spare };
        return;
    }
    match place {
        Value::Number(number) => *number = edited_number(number, random),
        Value::Array(list) => edit_list(list, spare, random),
        Value::Object(map) => edit_map(map, spare, random),
        Value::Bool(truth) => *truth = !*truth,
        Value::String(text) => *text = super::text::edit(text, &spare.to_string(), random),
        Value::Null => *place = spare,
    }
}

fn edited_number(number: &Number, random: &mut Random) -> Number {
    let whole = number.as_i64().unwrap_or_default();
    match random.below(6) {
        0 => whole.wrapping_add(1).into(),
        1 => whole.wrapping_sub(1).into(),
        2 => whole.wrapping_neg().into(),
        3 => Number::from_f64(*random.pick(&[1e308, -1.5, 1e-320, 0.5])).unwrap_or(0.into()),
        _ => random.number().into(),
    }
}

fn edit_list(list: &mut Vec<Value>, spare: Value, random: &mut Random) {
    let [at, to] = [random.below(list.len()), random.below(list.len())];
    match random.below(4) {
        0 if !list.is_empty() => drop(list.remove(at)),
        1 if !list.is_empty() => list.swap(at, to),
        2 if !list.is_empty() => list.insert(to, list[at].clone()),
        _ => list.insert(to, spare),
    }
}

fn edit_map(map: &mut Map<String, Value>, spare: Value, random: &mut Random) {
    let Some(name) = map.keys().nth(random.below(map.len())).cloned() else {
        map.insert("name".into(), spare);
        return;
    };
    match random.below(4) {
        0 => drop(map.remove(&name)),
        1 => drop(map.insert(name, spare)),
        2 => {
            let value = map.remove(&name).unwrap_or_default();
            map.insert(super::text::edit(&name, "name", random), value);
        }
        _ => {
            let value = map[&name].clone();
            map.insert(format!("{name}{}", random.below(10)), value);
        }
    }
}

/// Counts the values of a document, itself among them.
fn count(document: &Value) -> usize {
    1 + match document {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

/// The value before which `at` others come.
fn nth<'a>(document: &'a Value, at: &mut usize) -> Option<&'a Value> {
    if *at == 0 {
        return Some(document);
    }
    *at -= 1;
    match document {
        Value::Array(list) => list.iter().find_map(|value| nth(value, at)),
        Value::Object(map) => map.values().find_map(|value| nth(value, at)),
        _ => None,
    }
}

fn nth_mut<'a>(document: &'a mut Value, at: &mut usize) -> Option<&'a mut Value> {
    if *at == 0 {
        return Some(document);
    }
    *at -= 1;
    match document {
        Value::Array(list) => list.iter_mut().find_map(|value| nth_mut(value, at)),
        Value::Object(map) => map.values_mut().find_map(|value| nth_mut(value, at)),
        _ => None,
    }
}
