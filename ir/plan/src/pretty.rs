//! JSON in lines: what fits in a line stands on one, and so does a list of numbers.
//!
//! The text is laid out as it was serialized, without a tree of its values: one way through it measures all lists and objects, and
//! a second one writes them.

/// The number of characters of a line, up to which a list or an object stands on one.
const LINE: usize = 116;

/// The extent of a list or an object in the text.
#[derive(Clone, Copy)]
struct JsonExtent {
    /// The number of characters on one line, about; commas and quotes of names are counted generously.
    length: usize,
    /// Whether it is a list of numbers alone: of ranks, where it is long.
    numbers: bool,
    /// The position behind its last character.
    end: usize,
    /// The number of lists and objects inside it.
    inside: usize,
}

/// Lays out JSON that has no spaces between its parts.
pub(super) fn in_lines(json: &str) -> String {
    let mut lines =
        JsonLines { json, extents: measure_extents(json), next: 0, text: String::new() };
    lines.text.reserve(2 * json.len());
    lines.write_value(0, 0, 0);
    lines.text.push('\n');
    lines.text
}

/// Measures all lists and objects, in the order in which they begin.
fn measure_extents(json: &str) -> Vec<JsonExtent> {
    let bytes = json.as_bytes();
    let (mut all, mut open): (Vec<JsonExtent>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'[' | b'{' => {
                open.push(all.len());
                let numbers = bytes[at] == b'[';
                all.push(JsonExtent { length: 2, numbers, end: 0, inside: 0 });
                at += 1;
            }
            b']' | b'}' => {
                at += 1;
                let Some(closed) = open.pop() else { break };
                (all[closed].end, all[closed].inside) = (at, all.len() - closed - 1);
                let length = all[closed].length;
                count_value(&mut all, &open, length, false);
            }
            b',' => at += 1,
            first => {
                let end = scalar_end(bytes, at);
                if bytes.get(end) == Some(&b':') {
                    let of = open.last().and_then(|&of| all.get_mut(of));
                    of.into_iter().for_each(|of| of.length += 4 + name_length(&bytes[at..end]));
                    at = end + 1;
                } else {
                    count_value(&mut all, &open, end - at, first == b'-' || first.is_ascii_digit());
                    at = end;
                }
            }
        }
    }
    all
}

/// Counts one more value in the list or object that is open.
fn count_value(all: &mut [JsonExtent], open: &[usize], length: usize, is_number: bool) {
    if let Some(&of) = open.last() {
        all[of].length += 2 + length;
        all[of].numbers &= is_number;
    }
}

/// Returns the position behind a string, a number or a word that begins at `start`.
fn scalar_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    if bytes[start] != b'"' {
        while at < bytes.len() && !matches!(bytes[at], b',' | b']' | b'}') {
            at += 1;
        }
        return at;
    }
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// Returns the number of bytes of a name without quotes and escapes.
fn name_length(quoted: &[u8]) -> usize {
    let (mut at, mut length) = (1, 0);
    while at + 1 < quoted.len() {
        at += match (quoted[at], quoted[at + 1]) {
            (b'\\', b'u') => 6,
            (b'\\', _) => 2,
            _ => 1,
        };
        length += 1;
    }
    length
}

struct JsonLines<'a> {
    json: &'a str,
    extents: Vec<JsonExtent>,
    /// The index of the list or object that begins next.
    next: usize,
    text: String,
}

impl JsonLines<'_> {
    /// Writes the value at a place, that begins at a column of a line indented by `indent`, and returns the position behind it.
    fn write_value(&mut self, at: usize, indent: usize, column: usize) -> usize {
        let bytes = self.json.as_bytes();
        if !matches!(bytes[at], b'[' | b'{') {
            let end = scalar_end(bytes, at);
            self.text.push_str(&self.json[at..end]);
            return end;
        }
        let JsonExtent { length, numbers, end, inside } = self.extents[self.next];
        self.next += 1;
        let is_empty = end == at + 2;
        if numbers || is_empty || length <= LINE.saturating_sub(column) + 2 {
            self.next += inside;
            self.write_line(at, end);
        } else {
            self.write_entries(at, end, indent);
        }
        end
    }

    /// Writes the entries of a list or an object, one below the other.
    fn write_entries(&mut self, start: usize, end: usize, indent: usize) {
        let bytes = self.json.as_bytes();
        self.text.push_str(&self.json[start..=start]);
        let mut at = start + 1;
        while at < end {
            self.text.push_str(if at == start + 1 { "\n" } else { ",\n" });
            self.text.extend(std::iter::repeat_n(' ', indent + 1));
            let mut column = indent + 1;
            if bytes[start] == b'{' {
                let name = scalar_end(bytes, at);
                self.text.push_str(&self.json[at..=name]);
                self.text.push(' ');
                column += name - at + 2;
                at = name + 1;
            }
            // Behind the value stands a comma, or the bracket that closes all.
            at = self.write_value(at, indent + 1, column) + 1;
        }
        self.text.push('\n');
        self.text.extend(std::iter::repeat_n(' ', indent));
        self.text.push_str(&self.json[end - 1..end]);
    }

    /// Writes a part of the text on one line.
    fn write_line(&mut self, start: usize, end: usize) {
        let bytes = self.json.as_bytes();
        let (mut at, mut written) = (start, start);
        while at < end {
            match bytes[at] {
                b'"' => at = scalar_end(bytes, at),
                b',' | b':' => {
                    at += 1;
                    self.text.push_str(&self.json[written..at]);
                    self.text.push(' ');
                    written = at;
                }
                _ => at += 1,
            }
        }
        self.text.push_str(&self.json[written..end]);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_fits_is_on_one_line_and_all_is_the_same_value() {
        let long = "a name with \"quotes\", a comma, {brackets} and a backslash \\ ".repeat(2);
        let value = json!({
            "numbers": (0..100).collect::<Vec<u32>>(),
            "mixed": [1, "two", -3.5e-7, null, true],
            long.clone(): {"nothing": [], "empty": {}, "text": long, "\u{1}": 1},
            "rows": [{"a": [1, 2], "b": {"c": "x"}}, {"a": [], "b": {"c": "y".repeat(90)}}],
        });
        let text = in_lines(&value.to_string());
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), value);
        assert!(text.contains("\n \"mixed\": [1, \"two\", -3.5e-7, null, true]"), "{text}");
        assert!(text.contains("97, 98, 99]"), "{text}");
        assert!(
            text.contains("\n  {\"a\": [1, 2], \"b\": {\"c\": \"x\"}},\n  {\n   \"a\": [],\n"),
            "{text}"
        );
        assert!(text.ends_with("\n}\n"), "{text}");
        let is_list = |line: &&str| line.contains("\"numbers\"");
        assert!(text.lines().filter(|line| !is_list(line)).all(|line| line.len() <= 2 * LINE));
    }

    #[test]
    fn a_value_that_is_no_list_stands_as_it_is() {
        assert_eq!(in_lines("\"a, b: c\""), "\"a, b: c\"\n");
        assert_eq!(in_lines("{}"), "{}\n");
    }
}
