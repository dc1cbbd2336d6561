//! Edits of text: its words, numbers, marks and lines.

use super::random::Random;

/// A few edits, with words and lines of another text.
pub fn edit(text: &str, other: &str, random: &mut Random) -> String {
    let mut text = text.to_owned();
    for _ in 0..1 + random.below(3) {
        text = match random.below(4) {
            0 => edit_lines(&text, other, random),
            _ => edit_words(&text, other, random),
        };
    }
    text
}

/// A number as a text has it.
pub fn number(random: &mut Random) -> String {
    let number = random.number();
    match random.below(8) {
        0 => format!("-{number}"),
        1 => format!("{}", number as i64),
        2 => format!("{}.5", number % 1000),
        3 => (*random.pick(&["1e308", "-1e308", "1e-320", "nan", "inf", "1e39", "0.1", "-0.0"]))
            .into(),
        _ => number.to_string(),
    }
}

fn edit_lines(text: &str, other: &str, random: &mut Random) -> String {
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    let others: Vec<&str> = other.split_inclusive('\n').collect();
    edit_list(&mut lines, &others, random);
    lines.concat()
}

fn edit_words(text: &str, other: &str, random: &mut Random) -> String {
    let mut words = words(text);
    let number = number(random);
    if random.one_in(2) {
        let numbers: Vec<usize> = (0..words.len()).filter(|&at| is_number(words[at])).collect();
        if !numbers.is_empty() {
            words[*random.pick(&numbers)] = &number;
        }
    } else {
        edit_list(&mut words, &self::words(other), random);
    }
    words.concat()
}

/// Removes, repeats, swaps, replaces or takes over an item.
fn edit_list<'a>(list: &mut Vec<&'a str>, others: &[&'a str], random: &mut Random) {
    if list.is_empty() || others.is_empty() {
        return;
    }
    let [at, to] = [random.below(list.len()), random.below(list.len())];
    match random.below(6) {
        0 => drop(list.remove(at)),
        1 => list.insert(to, list[at]),
        2 => list.swap(at, to),
        3 => list[at] = list[to],
        4 => list[at] = *random.pick(others),
        _ => list.insert(at, *random.pick(others)),
    }
}

fn is_number(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_digit())
}

/// Words of letters and digits, blanks between them, and marks, each for itself.
fn words(text: &str) -> Vec<&str> {
    let kind = |letter: char| match letter {
        '_' | '.' => 0,
        _ if letter.is_alphanumeric() => 0,
        _ if letter.is_whitespace() => 1,
        _ => 2,
    };
    let (mut words, mut begin, mut last) = (Vec::new(), 0, None);
    for (at, letter) in text.char_indices() {
        if last.is_some_and(|last| last != kind(letter) || last == 2) {
            words.push(&text[begin..at]);
            begin = at;
        }
        last = Some(kind(letter));
    }
    words.push(&text[begin..]);
    words
}
