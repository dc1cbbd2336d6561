//! Edits of Protocol Buffers, without knowing their schema: bytes that can be taken apart as a message are one, most of the time.

use super::bytes;
use super::random::Random;

/// A field of a message.
#[derive(Clone, Debug)]
struct Field {
    number: u64,
    value: Value,
}

#[derive(Clone, Debug)]
enum Value {
    Integer(u64),
    Eight([u8; 8]),
    Four([u8; 4]),
    Bytes(Vec<u8>),
}

/// A few edits, with fields of another message.
pub fn edit(message: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut message = message.to_vec();
    for _ in 0..1 + random.below(3) {
        message = edit_message(&message, other, random);
    }
    message
}

fn edit_message(message: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let Some(mut fields) = parse(message).filter(|fields| !fields.is_empty()) else {
        return bytes::edit(message.to_vec(), other, random);
    };
    let [at, to] = [random.below(fields.len()), random.below(fields.len())];
    match random.below(12) {
        0 => drop(fields.remove(at)),
        1 => fields.insert(to, fields[at].clone()),
        2 => fields.swap(at, to),
        3 => fields[at].value = fields[to].value.clone(),
        4 => fields.extend(taken_over(other, random)),
        5 if random.one_in(4) => fields[at].number = 1 + random.below(24) as u64,
        _ => edit_value(&mut fields[at].value, other, random),
    }
    written(&fields)
}

/// A field of the other message, at its first level or the next.
fn taken_over(other: &[u8], random: &mut Random) -> Option<Field> {
    let fields = parse(other)?;
    let field = fields.get(random.below(fields.len()))?;
    match &field.value {
        Value::Bytes(inner) if random.one_in(2) => {
            let fields = parse(inner)?;
            fields.get(random.below(fields.len())).cloned()
        }
        _ => Some(field.clone()),
    }
}

fn edit_value(value: &mut Value, other: &[u8], random: &mut Random) {
    match value {
        Value::Integer(number) => {
            *number = match random.below(4) {
                0 => number.wrapping_add(1),
                1 => number.wrapping_neg(),
                _ => random.number(),
            }
        }
        Value::Eight(number) => *number = random.number().to_le_bytes(),
        Value::Four(number) => *number = (random.number() as u32).to_le_bytes(),
        Value::Bytes(inner) => {
            let text =
                std::str::from_utf8(inner).is_ok_and(|text| !text.contains(char::is_control));
            *inner = match text || random.one_in(8) {
                true => bytes::edit(std::mem::take(inner), other, random),
                false => edit_message(inner, other, random),
            };
        }
    }
}

fn parse(mut message: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let tag = take_integer(&mut message)?;
        let value = match tag & 7 {
            0 => Value::Integer(take_integer(&mut message)?),
            1 => Value::Eight(take(&mut message, 8)?.try_into().ok()?),
            2 => {
                let length = take_integer(&mut message)?.try_into().ok()?;
                Value::Bytes(take(&mut message, length)?.to_vec())
            }
            5 => Value::Four(take(&mut message, 4)?.try_into().ok()?),
            _ => return None,
        };
        fields.push(Field { number: tag >> 3, value });
    }
    Some(fields)
}

fn take<'a>(message: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some(taken)
}

fn take_integer(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for place in 0..10 {
        let byte = take(message, 1)?[0];
        number |= u64::from(byte & 0x7f).checked_shl(7 * place).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn written(fields: &[Field]) -> Vec<u8> {
    let mut message = Vec::new();
    for Field { number, value } in fields {
        let kind = match value {
            Value::Integer(_) => 0,
            Value::Eight(_) => 1,
            Value::Bytes(_) => 2,
            Value::Four(_) => 5,
        };
        write_integer(&mut message, number << 3 | kind);
        match value {
            Value::Integer(number) => write_integer(&mut message, *number),
            Value::Eight(bytes) => message.extend(bytes),
            Value::Four(bytes) => message.extend(bytes),
            Value::Bytes(bytes) => {
                write_integer(&mut message, bytes.len() as u64);
                message.extend(bytes);
            }
        }
    }
    message
}

fn write_integer(message: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        message.push(number as u8 | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}
