//! The JSON Schema of plans, and as much of a checker as it needs.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::source::{Field, Form, Item, Variant, parts};

/// Types that are written otherwise than they are made of.
pub fn leaf(ty: &str) -> Option<Value> {
    Some(match ty {
        "usize" | "u32" | "u64" | "RegisterId" | "ActorId" | "ChannelId" | "ProgramId"
        | "LayoutId" => {
            json!({"type": "integer", "minimum": 0})
        }
        "NonZeroU32" => json!({"type": "integer", "minimum": 1}),
        "i32" | "i64" | "OperandSource" => json!({"type": "integer"}),
        "f64" => json!({"type": "number"}),
        "bool" => json!({"type": "boolean"}),
        "String" | "LrSchedule" | "Schedule" | "Table" => json!({"type": "string"}),
        "Scalar" => json!({"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}),
        "Strategy" => json!({
            "type": "string",
            "pattern": "^(auto|((data|zero[123]),)*(data|zero[123]|megatron(:sp)?))$",
        }),
        "LearningRate" => json!({"anyOf": [{"type": "number"}, {"type": "string"}]}),
        "Sbp" => json!({"type": "string", "pattern": "^(B|S\\([0-9]+\\)|P\\((sum|max|min)\\))$"}),
        "NdSbp" => json!({"type": "array", "items": leaf("Sbp")}),
        "ReduceKind" => json!({"enum": ["sum", "max", "min"]}),
        _ => return None,
    })
}

/// The schema.
pub fn write(items: &BTreeMap<String, Item>, version: u32) -> Value {
    let mut defs = Map::new();
    let mut open = vec!["Plan".to_owned()];
    while let Some(name) = open.pop() {
        if defs.contains_key(&name) {
            continue;
        }
        let item = items.get(&name).unwrap_or_else(|| panic!("the type {name} is in no source"));
        let mut writer = Writer { items, open: Vec::new() };
        let found = writer.item(item);
        open.append(&mut writer.open);
        defs.insert(name, found);
    }
    defs.sort_keys();
    defs["Plan"]["properties"]["version"] = json!({"const": version});
    defs["Plan"]["properties"]["seal"] = json!({
        "type": "string",
        "pattern": "^[0-9a-f]{64}$",
        "description": "SHA-256 of all bytes of the file before it. A file has it, a plan in memory has not.",
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A plan of graphc",
        "$ref": "#/$defs/Plan",
        "$defs": defs,
    })
}

struct Writer<'a> {
    items: &'a BTreeMap<String, Item>,
    /// Types that are referred to.
    open: Vec<String>,
}

impl Writer<'_> {
    fn item(&mut self, item: &Item) -> Value {
        let mut found = match &item.form {
            Form::Struct(fields) => self.fields(fields),
            Form::Enum(variants) if item.name == "Op" => self.ops(variants),
            Form::Enum(variants) if item.attributes.contains("tag = \"name\"") => {
                json!({"anyOf": variants.iter().map(|v| self.tagged(v, "name")).collect::<Vec<_>>()})
            }
            Form::Enum(variants) => self.variants(variants),
        };
        found["description"] = item.docs.clone().into();
        found
    }

    fn fields(&mut self, fields: &[Field]) -> Value {
        let required: Vec<&str> = fields
            .iter()
            .filter(|field| !field.optional)
            .map(|field| field.name.as_str())
            .collect();
        let mut properties = Map::new();
        for field in fields {
            let mut ty = if field.runs { runs() } else { self.ty(&field.ty) };
            if !field.docs.is_empty() && ty.get("$ref").is_none() {
                ty["description"] = field.docs.clone().into();
            }
            properties.insert(field.name.clone(), ty);
        }
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    }

    /// Names, or objects of a name and a payload.
    fn variants(&mut self, variants: &[Variant]) -> Value {
        let plain = |variant: &&Variant| variant.ty.is_none() && variant.fields.is_empty();
        let names: Vec<&str> = variants.iter().filter(plain).map(|v| v.name.as_str()).collect();
        let mut any = Vec::new();
        if !names.is_empty() {
            any.push(json!({"enum": names}));
        }
        for variant in variants.iter().filter(|variant| !plain(variant)) {
            let inner = match &variant.ty {
                Some(ty) => self.ty(ty),
                None => self.fields(&variant.fields),
            };
            let name = &variant.name;
            any.push(json!({"type": "object", "properties": {name: inner}, "required": [name], "additionalProperties": false}));
        }
        if any.len() == 1 { any.remove(0) } else { json!({"anyOf": any}) }
    }

    /// The fields of a variant beside its name.
    fn tagged(&mut self, variant: &Variant, tag: &str) -> Value {
        let fields = match &variant.ty {
            Some(ty) => match &self.items[ty].form {
                Form::Struct(fields) => self.fields(fields),
                Form::Enum(_) => panic!("a payload of fields is expected of {ty}"),
            },
            None => self.fields(&variant.fields),
        };
        let mut found = fields;
        let mut properties = Map::new();
        properties.insert(tag.into(), json!({"const": variant.name}));
        properties.extend(found["properties"].as_object().cloned().unwrap_or_default());
        found["properties"] = properties.into();
        if let Some(required) = found["required"].as_array_mut() {
            required.insert(0, tag.into());
        }
        found["description"] = variant.docs.clone().into();
        found
    }

    fn ops(&mut self, variants: &[Variant]) -> Value {
        let names: Vec<&str> = variants.iter().map(|variant| variant.name.as_str()).collect();
        let any: Vec<Value> = variants.iter().map(|variant| self.tagged(variant, "op")).collect();
        json!({"properties": {"op": {"enum": names}}, "anyOf": any})
    }

    fn ty(&mut self, ty: &str) -> Value {
        if let Some(found) = leaf(ty) {
            return found;
        }
        match parts(ty) {
            (None, _) => {
                self.open.push(ty.to_owned());
                json!({"$ref": format!("#/$defs/{ty}")})
            }
            (Some("Vec"), inner) => json!({"type": "array", "items": self.ty(inner[0])}),
            (Some("Option"), inner) => json!({"anyOf": [self.ty(inner[0]), {"type": "null"}]}),
            (Some("map"), inner) => {
                json!({"type": "object", "additionalProperties": self.ty(inner[0])})
            }
            (Some("array"), inner) => {
                let count: usize = inner[1].parse().expect("a number of elements");
                json!({"type": "array", "items": self.ty(inner[0]), "minItems": count, "maxItems": count})
            }
            (Some("tuple"), inner) => {
                let items: Vec<Value> = inner.iter().map(|ty| self.ty(ty)).collect();
                json!({"type": "array", "prefixItems": items, "minItems": items.len(), "maxItems": items.len()})
            }
            (Some(other), _) => panic!("what is a {other}?"),
        }
    }
}

/// Ranks: numbers, or runs of them.
fn runs() -> Value {
    let number = json!({"type": "integer", "minimum": 0});
    let run = json!({"type": "array", "items": number, "minItems": 3, "maxItems": 3});
    json!({"type": "array", "items": {"anyOf": [number, run]}})
}

/// Checks a value by the part of JSON Schema that is used here; patterns are left aside.
pub fn check(root: &Value, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    let fail = |what: &str| Err(format!("{place}: {what}, not {value}"));
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
        return check(root, &root["$defs"][name], value, place);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let errors: Vec<String> =
            any.iter().filter_map(|one| check(root, one, value, place).err()).collect();
        let longest = errors.iter().max_by_key(|error| error.find(':'));
        return if errors.len() < any.len() {
            Ok(())
        } else {
            Err(longest.cloned().unwrap_or_default())
        };
    }
    if let Some(one_of) = schema["enum"].as_array() {
        return if one_of.contains(value) { Ok(()) } else { fail("one of the names") };
    }
    if let Some(only) = schema.get("const") {
        return if only == value { Ok(()) } else { fail(&only.to_string()) };
    }
    match (schema["type"].as_str(), value) {
        (Some("object"), Value::Object(fields)) => object(root, schema, fields, place),
        (Some("array"), Value::Array(items)) => array(root, schema, items, place),
        (Some("integer"), Value::Number(number)) if !number.is_f64() => Ok(()),
        (Some("number"), Value::Number(_)) => Ok(()),
        (Some("string"), Value::String(_)) | (Some("boolean"), Value::Bool(_)) => Ok(()),
        (Some("null"), Value::Null) => Ok(()),
        (of, _) => fail(of.unwrap_or("something known")),
    }
}

fn object(
    root: &Value,
    schema: &Value,
    fields: &Map<String, Value>,
    place: &str,
) -> Result<(), String> {
    let needed = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in needed {
        if !fields.contains_key(name) {
            return Err(format!("{place}: it has no {name}"));
        }
    }
    for (name, value) in fields {
        let place = format!("{place}.{name}");
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(property), _) => check(root, property, value, &place)?,
            (None, Value::Object(_)) => {
                check(root, &schema["additionalProperties"], value, &place)?
            }
            (None, _) => return Err(format!("{place}: there is no such field")),
        }
    }
    Ok(())
}

fn array(root: &Value, schema: &Value, items: &[Value], place: &str) -> Result<(), String> {
    let limit = |name: &str| schema[name].as_u64().map(|limit| limit as usize);
    if limit("minItems").is_some_and(|n| items.len() < n)
        || limit("maxItems").is_some_and(|n| items.len() > n)
    {
        return Err(format!("{place}: another number of items"));
    }
    for (index, item) in items.iter().enumerate() {
        let of = schema["prefixItems"].get(index).unwrap_or(&schema["items"]);
        check(root, of, item, &format!("{place}[{index}]"))?;
    }
    Ok(())
}
