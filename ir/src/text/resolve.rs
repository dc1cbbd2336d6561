//! Turns statements into a graph: names become ids, extents numbers, attributes payloads, and types are inferred.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value as Json};

use super::error::{ParseError, ParseErrors};
use super::lex::{Label, TextSpan};
use super::payload::{finish_op, op_names};
use super::suggest::nearest_name;
use super::syntax::{
    Attribute, ExtentFactor, Literal, NodeText, Statement, SymbolicExtent, parse_statements,
};
use crate::graph::{Graph, Output, Part, Source};
use crate::ids::{StageId, ValueId};
use crate::op::Op;
use crate::types::TensorType;

/// The graph of a text without symbolic extents.
///
/// # Errors
/// All that does not fit, with lines and columns.
///
/// ```
/// let text = "graph @g {\n  %x = input \"x\" : f32[2, 3]\n  return \"out\" = %x\n}\n";
/// let graph = graphc_ir::text::parse_graph(text)?;
/// assert_eq!(graphc_ir::text::print_graph(&graph), text);
/// # Ok::<(), graphc_ir::text::ParseErrors>(())
/// ```
pub fn parse_graph(text: &str) -> Result<Graph, ParseErrors> {
    parse_with(text, &BTreeMap::new())
}

/// The graph of a text, with these values for its symbolic extents.
///
/// # Errors
/// All that does not fit, with lines and columns; an extent without a value is named.
pub fn parse_with(text: &str, dims: &BTreeMap<String, usize>) -> Result<Graph, ParseErrors> {
    Unresolved::new(text).resolve(dims)
}

/// A text that is read, and of which nothing is known of what its symbolic extents stand for.
pub struct Unresolved<'a> {
    text: Cow<'a, str>,
    /// The statements, each with its line.
    statements: Vec<(usize, Statement)>,
    /// The errors: all that could not be read.
    errors: Vec<ParseError>,
}

impl<'a> Unresolved<'a> {
    /// Reads a text.
    pub fn new(text: impl Into<Cow<'a, str>>) -> Self {
        let text = text.into();
        let (statements, errors) = parse_statements(&text);
        Self { text, statements, errors }
    }

    /// Returns its symbolic extents, in order of appearance.
    pub fn symbols(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (_, statement) in &self.statements {
            let Statement::Node(node) = statement else { continue };
            let attributes = node.attributes.iter();
            attributes.for_each(|attribute| literal_symbols(&attribute.value, &mut found));
            for dim in node.types.iter().flatten().flat_map(|ty| &ty.shape) {
                dim_symbols(dim, &mut found);
            }
        }
        found
    }

    /// Returns its inputs in order of appearance, and of each dim the symbol that it is, where it is one alone.
    pub fn inputs(&self) -> Vec<(String, Vec<Option<String>>)> {
        let symbol = |dim: &SymbolicExtent| match dim.factors.as_slice() {
            [ExtentFactor::Symbol(name, _)] => Some(name.clone()),
            _ => None,
        };
        let mut inputs = Vec::new();
        for (_, statement) in &self.statements {
            let Statement::Node(node) = statement else { continue };
            if node.op.0 == "input" {
                let name = node.name.as_ref().map(|(name, _)| name.clone()).unwrap_or_default();
                let dims = node.types.iter().flatten().take(1).flat_map(|ty| &ty.shape);
                inputs.push((name, dims.map(symbol).collect()));
            }
        }
        inputs
    }

    /// Returns its graph, where `dims` gives symbolic extents their values.
    ///
    /// # Errors
    /// All that is wrong with the text.
    pub fn resolve(self, dims: &BTreeMap<String, usize>) -> Result<Graph, ParseErrors> {
        let Self { text, statements, errors } = self;
        let unreadable = errors.iter().map(|error| error.line).collect();
        let mut resolver = GraphResolver { errors, dims, unreadable, ..GraphResolver::new(dims) };
        resolver.declare_values(&statements);
        for (line, statement) in &statements {
            if let Err(error) = resolver.resolve_statement(*line, statement) {
                resolver.errors.push(error);
            }
        }
        resolver.check_closing(&text);
        if resolver.errors.is_empty() {
            return Ok(resolver.graph);
        }
        Err(ParseErrors::new(&text, resolver.errors))
    }
}

fn literal_symbols(literal: &Literal, found: &mut Vec<String>) {
    match literal {
        Literal::Json(_) => {}
        Literal::Dim(dim) => dim_symbols(dim, found),
        Literal::Array(items, _) => items.iter().for_each(|item| literal_symbols(item, found)),
        Literal::Object(entries) => entries.iter().for_each(|(_, v)| literal_symbols(v, found)),
    }
}

fn dim_symbols(dim: &SymbolicExtent, found: &mut Vec<String>) {
    for factor in &dim.factors {
        if let ExtentFactor::Symbol(name, _) = factor
            && !found.contains(name)
        {
            found.push(name.clone());
        }
    }
}

/// A tensor has fewer elements than this, so that no later sum or product overflows.
const MOST_ELEMENTS: usize = 1 << 48;
/// More dims than any tensor has; each is a way to split it, which the planner weighs.
const MOST_DIMS: usize = 32;

struct GraphResolver<'a> {
    graph: Graph,
    dims: &'a BTreeMap<String, usize>,
    errors: Vec<ParseError>,
    /// Values by what they are called; `None` where the node that makes them did not fit.
    values: BTreeMap<Label, Option<ValueId>>,
    /// The line of each definition, to tell "later" from "nowhere".
    definitions: BTreeMap<Label, usize>,
    /// Lines that could not be read: what is not defined may stand there.
    unreadable: BTreeSet<usize>,
    outputs: BTreeSet<String>,
    opened: bool,
    closed: bool,
}

impl<'a> GraphResolver<'a> {
    fn new(dims: &'a BTreeMap<String, usize>) -> Self {
        Self {
            graph: Graph::default(),
            dims,
            errors: Vec::new(),
            values: BTreeMap::new(),
            definitions: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            outputs: BTreeSet::new(),
            opened: false,
            closed: false,
        }
    }

    fn declare_values(&mut self, statements: &[(usize, Statement)]) {
        for (line, statement) in statements {
            if let Statement::Node(node) = statement {
                for (label, _) in &node.results {
                    self.definitions.entry(label.clone()).or_insert(*line);
                }
            }
        }
    }

    fn resolve_statement(&mut self, line: usize, statement: &Statement) -> Result<(), ParseError> {
        let start = TextSpan { line, column: 1, length: 1 };
        if let Statement::Graph(name) = statement {
            if std::mem::replace(&mut self.opened, true) {
                return Err(start.error("a text holds one graph"));
            }
            self.graph.name.clone_from(name);
            return Ok(());
        }
        if !std::mem::replace(&mut self.opened, true) && self.unreadable.is_empty() {
            self.errors.push(start.error("expected `graph @name {` first"));
        }
        if self.closed {
            return Err(start.error("nothing may follow the `}` of the graph"));
        }
        match statement {
            Statement::Graph(_) => {}
            Statement::Stage { index, span, placement } => {
                if *index != self.graph.stages.len() {
                    let expected = self.graph.stages.len();
                    return Err(
                        span.error(format!("stages stand in order: expected stage {expected}"))
                    );
                }
                self.graph.stages.push(placement.clone());
            }
            Statement::Node(node) => self.resolve_node(line, node),
            Statement::Return(outputs) => self.resolve_outputs(outputs),
            Statement::End => self.closed = true,
        }
        Ok(())
    }

    fn check_closing(&mut self, text: &str) {
        let (line, last) = text.lines().enumerate().last().map_or((1, ""), |(i, l)| (i + 1, l));
        let end = TextSpan { line, column: last.chars().count() + 1, length: 1 };
        if !self.opened && self.errors.is_empty() {
            self.errors.push(end.error("expected `graph @name {`"));
        } else if !self.closed && self.errors.is_empty() {
            self.errors.push(end.error("the graph has no end: a `}` is missing"));
        }
        // An extent without a value is said once.
        self.errors.sort_by_key(|error| (error.line, error.column));
        let mut said = BTreeSet::new();
        self.errors.retain(|e| !e.message.starts_with(UNBOUND) || said.insert(e.message.clone()));
    }

    fn resolve_outputs(&mut self, outputs: &[(String, TextSpan, Label, TextSpan)]) {
        for (name, name_span, label, span) in outputs {
            if !self.outputs.insert(name.clone()) {
                self.errors.push(name_span.error(format!("there is another output `{name}`")));
            }
            match self.resolve_value(label, *span) {
                Ok(Some(value)) => self.graph.outputs.push(Output { name: name.clone(), value }),
                Ok(None) => {}
                Err(error) => self.errors.push(error),
            }
        }
    }

    fn resolve_value(&self, label: &Label, span: TextSpan) -> Result<Option<ValueId>, ParseError> {
        if let Some(value) = self.values.get(label) {
            return Ok(*value);
        }
        if let Some(line) = self.definitions.get(label) {
            return Err(
                span.error(format!("the value is used before it is defined, in line {line}"))
            );
        }
        if !self.unreadable.is_empty() {
            return Ok(None);
        }
        let (Label::Name(name) | Label::Number(name)) = label;
        let names = self.values.keys().filter_map(|label| match label {
            Label::Name(name) => Some(name.as_str()),
            Label::Number(_) => None,
        });
        let hint = nearest_name(name, names).map(|near| format!(": did you mean `%{near}`?"));
        Err(span.error(format!("no value has this name{}", hint.unwrap_or_default())))
    }

    fn resolve_node(&mut self, line: usize, node: &NodeText) {
        let made = self.build_node(line, node);
        let ids = match made {
            Ok(ids) => ids,
            Err(errors) => {
                self.errors.extend(errors);
                None
            }
        };
        for (index, (label, span)) in node.results.iter().enumerate() {
            let id = ids.as_ref().and_then(|ids| ids.get(index)).copied();
            if self.values.contains_key(label) {
                self.errors.push(span.error("the name is taken"));
                continue;
            }
            self.values.insert(label.clone(), id);
            if let (Label::Name(name), Some(id)) = (label, id) {
                self.graph.values[id.index()].name = Some(name.clone());
            }
        }
    }

    /// The results of the node; `None` where it takes what did not fit before.
    fn build_node(
        &mut self,
        line: usize,
        node: &NodeText,
    ) -> Result<Option<Vec<ValueId>>, Vec<ParseError>> {
        let mut errors = Vec::new();
        let mut operands = Vec::new();
        for (label, span) in &node.operands {
            match self.resolve_value(label, *span) {
                Ok(value) => operands.push(value),
                Err(error) => errors.push(error),
            }
        }
        let fit = errors.len();
        let types = self.resolve_types(node, &mut errors);
        // An op whose type cannot be read would be said to lack one.
        let op = if errors.len() == fit {
            self.build_op(node, types.as_deref(), &mut errors)
        } else {
            None
        };
        if let Some((stage, span)) = node.stage
            && stage >= self.graph.stages.len()
        {
            errors.push(
                span.error(format!("stage {stage} is not declared: write `stage {stage}` above")),
            );
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let (Some(op), Some(operands)) = (op, operands.into_iter().collect::<Option<Vec<_>>>())
        else {
            return Ok(None);
        };
        self.append_node(line, node, op, operands, types).map(Some).map_err(|error| vec![error])
    }

    fn append_node(
        &mut self,
        line: usize,
        node: &NodeText,
        op: Op,
        operands: Vec<ValueId>,
        types: Option<Vec<TensorType>>,
    ) -> Result<Vec<ValueId>, ParseError> {
        let column = node.results[0].1.column;
        let source = Source::Text { line: line as u32, column: column as u32 };
        let (nodes, values) = (self.graph.nodes.len(), self.graph.values.len());
        let id = self
            .graph
            .push(op, operands, source)
            .map_err(|error| node.op.1.error(error.to_string()))?;
        let results = self.graph.node(id).results.clone();
        if let Err(error) = self.annotate_node(id.index(), node, &results, types) {
            // What does not fit is taken back, so that the graph holds only what was accepted.
            self.graph.nodes.truncate(nodes);
            self.graph.values.truncate(values);
            return Err(error);
        }
        Ok(results)
    }

    fn annotate_node(
        &mut self,
        index: usize,
        node: &NodeText,
        results: &[ValueId],
        types: Option<Vec<TensorType>>,
    ) -> Result<(), ParseError> {
        let last = node.results.len() - 1;
        if node.results.len() != results.len() {
            let span = node.results[0].1.extend_to(node.results[last].1);
            let (op, count, found) = (&node.op.0, results.len(), node.results.len());
            return Err(span.error(format!("{op} has {count} results here, not {found}")));
        }
        for (&id, name) in results.iter().zip(&node.results) {
            if count_elements(&self.graph.value(id).ty.shape).is_none() {
                return Err(name.1.error("the result has too many elements or dims"));
            }
        }
        self.check_types(results, node, types.as_deref().unwrap_or_default())?;
        if let Some((pins, span)) = &node.pins {
            if pins.len() != results.len() {
                return Err(span.error(format!(
                    "{} pins for {} results",
                    pins.len(),
                    results.len()
                )));
            }
            for (&id, pin) in results.iter().zip(pins) {
                self.graph.values[id.index()].pin.clone_from(pin);
            }
        }
        let part = node.stage.map(|(stage, _)| Part::Stage(StageId::new(stage)));
        self.graph.nodes[index].part = part;
        self.graph.nodes[index].placement.clone_from(&node.placement);
        self.graph.nodes[index].autocast = node.autocast;
        Ok(())
    }

    fn check_types(
        &self,
        results: &[ValueId],
        node: &NodeText,
        types: &[TensorType],
    ) -> Result<(), ParseError> {
        let Some(texts) = &node.types else { return Ok(()) };
        if types.len() != results.len() {
            let span = texts[0].span.extend_to(texts[texts.len() - 1].span);
            let (given, results) = (types.len(), results.len());
            return Err(span.error(format!("{given} types for {results} results")));
        }
        for ((&id, given), text) in results.iter().zip(types).zip(texts) {
            let inferred = &self.graph.value(id).ty;
            if given != inferred {
                let op = &node.op.0;
                return Err(text.span.error(format!("{op} gives {inferred} here, not {given}")));
            }
        }
        Ok(())
    }

    fn resolve_types(
        &self,
        node: &NodeText,
        errors: &mut Vec<ParseError>,
    ) -> Option<Vec<TensorType>> {
        let mut types = Vec::new();
        for text in node.types.as_ref()? {
            let extents =
                text.shape.iter().map(|dim| keep_errors(self.resolve_extent(dim), errors));
            let shape: Vec<usize> = extents.flatten().collect();
            if count_elements(&shape).is_none() {
                errors.push(text.span.error("the type has too many elements or dims"));
            }
            types.push(TensorType::new(text.dtype, shape));
        }
        Some(types)
    }

    fn resolve_extent(&self, dim: &SymbolicExtent) -> Result<usize, ParseError> {
        let mut product = 1usize;
        for factor in &dim.factors {
            let value = match factor {
                ExtentFactor::Number(number) => *number,
                ExtentFactor::Symbol(name, span) => {
                    *self.dims.get(name).ok_or_else(|| span.error(explain_unbound(name)))?
                }
            };
            product = product
                .checked_mul(value)
                .filter(|&product| product < MOST_ELEMENTS)
                .ok_or_else(|| dim.span.error("the extent is too large"))?;
        }
        Ok(product)
    }

    fn resolve_literal(&self, literal: &Literal) -> Result<Json, ParseError> {
        Ok(match literal {
            Literal::Json(json) => json.clone(),
            Literal::Dim(dim) => self.resolve_extent(dim)?.into(),
            Literal::Array(items, _) => Json::Array(
                items.iter().map(|item| self.resolve_literal(item)).collect::<Result<_, _>>()?,
            ),
            Literal::Object(entries) => {
                let entry = |(key, value): &(String, Literal)| {
                    Ok((key.clone(), self.resolve_literal(value)?))
                };
                Json::Object(entries.iter().map(entry).collect::<Result<_, _>>()?)
            }
        })
    }

    /// The op of a node; errors are kept in `errors`.
    fn build_op(
        &self,
        node: &NodeText,
        types: Option<&[TensorType]>,
        errors: &mut Vec<ParseError>,
    ) -> Option<Op> {
        let before = errors.len();
        let (op, span) = &node.op;
        let names = op_names();
        if !names.contains(&op.as_str()) {
            let hint = nearest_name(op, names.iter().copied());
            let hint = hint.map(|near| format!(": did you mean `{near}`?")).unwrap_or_default();
            errors.push(span.error(format!("there is no op `{op}`{hint}")));
            return None;
        }
        let mut payload = Map::new();
        payload.insert("op".into(), op.as_str().into());
        if let Some((name, _)) = &node.name {
            payload.insert("name".into(), name.as_str().into());
        }
        if let Some([ty, ..]) = types {
            payload.insert("ty".into(), serde_json::to_value(ty).unwrap_or_default());
        }
        for attribute in &node.attributes {
            if let Err(error) = self.resolve_attribute(attribute, &mut payload) {
                errors.push(error);
            }
        }
        if errors.len() > before {
            return None;
        }
        keep_errors(finish_op(node, payload), errors)
    }

    fn resolve_attribute(
        &self,
        attribute: &Attribute,
        payload: &mut Map<String, Json>,
    ) -> Result<(), ParseError> {
        let Attribute { key, span, value } = attribute;
        let json = self.resolve_literal(value)?;
        if key == "shape"
            && let (Json::Array(items), Literal::Array(_, at)) = (&json, value)
        {
            let extents: Vec<usize> =
                items.iter().filter_map(|item| item.as_u64()).map(|item| item as usize).collect();
            if count_elements(&extents).is_none() {
                return Err(at.error("the shape has too many elements or dims"));
            }
        }
        if matches!(key.as_str(), "op" | "ty") || payload.insert(key.clone(), json).is_some() {
            return Err(span.error(format!("`{key}` cannot be given here")));
        }
        Ok(())
    }
}

fn keep_errors<T>(result: Result<T, ParseError>, errors: &mut Vec<ParseError>) -> Option<T> {
    result.map_err(|error| errors.push(error)).ok()
}

/// The number of elements; `None` where it is too large, even with dims of extent 0 left out.
fn count_elements(shape: &[usize]) -> Option<usize> {
    if shape.len() > MOST_DIMS {
        return None;
    }
    let product = shape.iter().filter(|&&extent| extent > 0);
    product.copied().try_fold(1usize, usize::checked_mul).filter(|&n| n < MOST_ELEMENTS)
}

const UNBOUND: &str = "the extent `";

fn explain_unbound(name: &str) -> String {
    format!("{UNBOUND}{name}` has no value: give it with --batch or --dim {name}=VALUE")
}
