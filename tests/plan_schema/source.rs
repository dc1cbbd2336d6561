//! Types, read from formatted source: names, doc comments, fields and variants as files have them.

use std::collections::BTreeMap;
use std::path::Path;

/// A type.
#[derive(Debug)]
pub struct Item {
    pub name: String,
    pub docs: String,
    pub attributes: String,
    pub form: Form,
}

/// The form of a type.
#[derive(Debug)]
pub enum Form {
    Struct(Vec<Field>),
    Enum(Vec<Variant>),
}

/// A field, by its name in files.
#[derive(Debug)]
pub struct Field {
    pub name: String,
    pub docs: String,
    pub ty: String,
    /// Whether it may be left out.
    pub optional: bool,
    /// Whether ranks may be runs.
    pub runs: bool,
}

/// A variant, by its name in files.
#[derive(Debug)]
pub struct Variant {
    pub name: String,
    pub docs: String,
    /// The one type of its payload.
    pub ty: Option<String>,
    pub fields: Vec<Field>,
}

/// Reads all types of the files by name.
pub fn read(root: &Path, sources: &[&str]) -> BTreeMap<String, Item> {
    let mut items = BTreeMap::new();
    for source in sources {
        let path = root.join(source);
        let mut files = vec![path.clone()];
        if path.is_dir() {
            let entries = std::fs::read_dir(path).expect("a folder of the source");
            files = entries.map(|entry| entry.expect("an entry").path()).collect();
        }
        for file in files.iter().filter(|file| file.extension().is_some_and(|e| e == "rs")) {
            let text = std::fs::read_to_string(file).expect("source");
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            items.extend(Reader::new(text).items().map(|item| (item.name.clone(), item)));
        }
    }
    items
}

struct Reader<'a> {
    lines: std::iter::Peekable<std::str::Lines<'a>>,
    docs: Vec<String>,
    attributes: String,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Self { lines: text.lines().peekable(), docs: Vec::new(), attributes: String::new() }
    }

    fn items(mut self) -> impl Iterator<Item = Item> {
        std::iter::from_fn(move || {
            loop {
                let line = self.lines.next()?;
                if self.remark(line) {
                    continue;
                }
                let (docs, attributes) = self.taken();
                let found = line.strip_prefix("pub struct ").or(line.strip_prefix("pub enum "));
                let serialized =
                    attributes.contains("Serialize") || attributes.contains("try_from");
                if let (Some(rest), true) = (found, serialized)
                    && let Some(name) = rest.strip_suffix(" {").or(rest.strip_suffix(" {}"))
                {
                    let empty = rest.ends_with("{}");
                    let form = self.form(line.starts_with("pub enum"), empty, &attributes);
                    return Some(Item { name: name.into(), docs, attributes, form });
                }
            }
        })
    }

    /// Takes in a line of docs or of an attribute; whether it is one.
    fn remark(&mut self, line: &str) -> bool {
        let line = line.trim();
        if let Some(docs) = line.strip_prefix("///") {
            self.docs.push(docs.trim().to_owned());
            return true;
        }
        if line.starts_with("#[") {
            self.attributes += line;
            while !self.attributes.ends_with(']') {
                let Some(more) = self.lines.next() else { break };
                self.attributes += more.trim();
            }
            return true;
        }
        false
    }

    fn taken(&mut self) -> (String, String) {
        (plain(&std::mem::take(&mut self.docs)), std::mem::take(&mut self.attributes))
    }

    fn form(&mut self, is_enum: bool, empty: bool, attributes: &str) -> Form {
        if is_enum {
            return Form::Enum(self.variants(attributes));
        }
        Form::Struct(if empty { Vec::new() } else { self.fields("}") })
    }

    /// Fields up to a line that ends them.
    fn fields(&mut self, end: &str) -> Vec<Field> {
        let mut fields = Vec::new();
        while let Some(line) = self.lines.next() {
            if line.trim_end() == end || line.trim() == end {
                break;
            }
            if self.remark(line) {
                continue;
            }
            let (docs, attributes) = self.taken();
            let line = line.trim().trim_start_matches("pub ");
            let Some((name, ty)) = line.trim_end_matches(',').split_once(": ") else { continue };
            let name = quoted(&attributes, "rename = ").unwrap_or_else(|| name.to_owned());
            let optional = attributes.contains("default");
            let runs = attributes.contains("with = ");
            fields.push(Field { name, docs, ty: ty.to_owned(), optional, runs });
        }
        fields
    }

    fn variants(&mut self, of_enum: &str) -> Vec<Variant> {
        let mut variants = Vec::new();
        while let Some(line) = self.lines.next() {
            if line == "}" {
                break;
            }
            if self.remark(line) {
                continue;
            }
            let (docs, attributes) = self.taken();
            let line = line.trim();
            let end = line.find(['(', ' ', ',']).unwrap_or(line.len());
            let renamed = quoted(&attributes, "rename = ");
            let name = renamed.unwrap_or_else(|| cased(&line[..end], of_enum));
            let payload = line.split_once('(').and_then(|(_, rest)| rest.strip_suffix("),"));
            let fields = if line.ends_with(" {") { self.fields("},") } else { Vec::new() };
            if end > 0 {
                variants.push(Variant { name, docs, ty: payload.map(str::to_owned), fields });
            }
        }
        variants
    }
}

/// Docs as one paragraph, without links.
fn plain(docs: &[String]) -> String {
    let mut text = docs.join(" ");
    while let Some(begin) = text.find("](") {
        let Some(length) = text[begin..].find(')') else { break };
        text.replace_range(begin + 1..begin + length + 1, "");
    }
    text.replace("[`", "`").replace("`]", "`").replace("\\[", "[").replace("\\]", "]")
}

/// The text behind a word of an attribute, in quotes.
fn quoted(attributes: &str, word: &str) -> Option<String> {
    let (_, rest) = attributes.split_once(word)?;
    rest.split('"').nth(1).map(str::to_owned)
}

/// A variant's name as its enum writes it.
fn cased(name: &str, attributes: &str) -> String {
    match quoted(attributes, "rename_all = ").as_deref() {
        Some("lowercase") => name.to_lowercase(),
        Some("snake_case") => {
            let mut text = String::new();
            for letter in name.chars() {
                if letter.is_uppercase() && !text.is_empty() {
                    text.push('_');
                }
                text.extend(letter.to_lowercase());
            }
            text
        }
        _ => name.to_owned(),
    }
}

/// The types that a type in the source consists of, and the name of what is around the first, if anything is.
pub fn parts(ty: &str) -> (Option<&str>, Vec<&str>) {
    if let Some(inner) = ty.strip_prefix('(').and_then(|ty| ty.strip_suffix(')')) {
        return (Some("tuple"), inner.split(", ").collect());
    }
    if let Some(inner) = ty.strip_prefix('[').and_then(|ty| ty.strip_suffix(']')) {
        return (Some("array"), inner.split("; ").collect());
    }
    let Some((outer, inner)) = ty.split_once('<') else { return (None, vec![ty]) };
    let inner = inner.strip_suffix('>').unwrap_or(inner);
    match outer {
        "BTreeMap" => {
            ("map".into(), inner.split_once(", ").map(|(_, value)| value).into_iter().collect())
        }
        _ => (Some(outer), vec![inner]),
    }
}
