//! Tables of costs by labels, with a single entry for all labels that cost the same.
//!
//! A pair of nodes pays what boxing costs between the layout that one label makes and the layout that the other
//! takes. Many labels make or take the same layout, so they are one class.
//!
//! Equal tables are kept once. Layers that are alike have equal tables, and the work on these is done once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;

/// The number of which lengths of vectorized buffers are multiples, so that they are whole vectors on every processor.
pub(crate) const LANES: usize = 8;

/// The classes of the labels of a variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LabelAxis {
    /// The class of each label.
    pub classes: Vec<u32>,
    /// The number of classes.
    pub count: usize,
}

impl LabelAxis {
    /// Makes an axis that gives each label one of `count` classes.
    pub fn new(classes: impl IntoIterator<Item = usize>, count: usize) -> Self {
        Self { classes: classes.into_iter().map(|class| class as u32).collect(), count }
    }

    /// Makes an axis on which every label is a class of its own.
    pub fn one_per_label(labels: usize) -> Self {
        Self::new(0..labels, labels)
    }

    /// Makes an axis on which labels with equal keys are a class, and returns the key of each class.
    pub fn by_key<K: Eq + Hash + Copy>(keys: impl IntoIterator<Item = K>) -> (Self, Vec<K>) {
        let (mut known, mut firsts) = (HashMap::new(), Vec::new());
        let class = |key: K| {
            *known.entry(key).or_insert_with(|| {
                firsts.push(key);
                firsts.len() - 1
            })
        };
        let classes: Vec<usize> = keys.into_iter().map(class).collect();
        (Self::new(classes, firsts.len()), firsts)
    }

    /// Returns the class of a label.
    pub fn class(&self, label: usize) -> usize {
        self.classes[label] as usize
    }

    /// Returns the first label of each class, if classes are ordered by these.
    pub(crate) fn first_labels(&self) -> Vec<usize> {
        let mut firsts = Vec::with_capacity(self.count);
        for (label, &class) in self.classes.iter().enumerate() {
            if class as usize == firsts.len() {
                firsts.push(label);
            }
        }
        firsts
    }

    /// Returns the axis of only these labels.
    fn with_labels(&self, labels: &[usize]) -> Self {
        Self::new(labels.iter().map(|&label| self.class(label)), self.count)
    }

    /// Makes an axis on which labels of one class in both axes are a class, and returns the two classes of each.
    pub(crate) fn refine_with(&self, other: &Self) -> (Self, Vec<(u32, u32)>) {
        Self::by_key(self.classes.iter().copied().zip(other.classes.iter().copied()))
    }
}

/// Costs by the labels of some variables.
#[derive(Clone, Debug)]
pub struct CostTable {
    /// The classes of the labels of each variable.
    pub axes: Vec<LabelAxis>,
    /// The costs by the classes of all variables; those of the last change fastest.
    pub entries: Vec<f64>,
}

impl PartialEq for CostTable {
    fn eq(&self, other: &Self) -> bool {
        self.axes == other.axes && same_bits(&self.entries, &other.entries)
    }
}

impl CostTable {
    /// Makes a table of entries by these classes. Its own classes are as few as possible, in the order of the first label of each.
    pub fn new<'a>(axes: Vec<LabelAxis>, entries: impl Into<Cow<'a, [f64]>>) -> Self {
        let mut all = TableClasses { axes, entries: entries.into() };
        (0..all.axes.len()).for_each(|at| all.drop_unused(at));
        (0..all.axes.len()).for_each(|at| all.merge_equal(at));
        Self { axes: all.axes, entries: all.entries.into_owned() }
    }

    /// Makes a table over two variables, by classes.
    pub fn of_pair(axes: [LabelAxis; 2], cost: impl Fn(usize, usize) -> f64) -> Self {
        let [rows, columns] = [0, 1].map(|at| axes[at].count);
        let mut entries = Vec::with_capacity(rows * columns);
        for row in 0..rows {
            entries.extend((0..columns).map(|column| cost(row, column)));
        }
        Self::new(axes.into(), entries)
    }

    /// Whether any labels cost something.
    pub(crate) fn has_costs(&self) -> bool {
        self.entries.iter().any(|&cost| cost != 0.0)
    }

    /// Returns the cost of a pair of labels.
    pub(crate) fn cost_at(&self, row: usize, column: usize) -> f64 {
        let [rows, columns] = [0, 1].map(|at| &self.axes[at]);
        self.entries[rows.class(row) * columns.count + columns.class(column)]
    }

    /// Returns the number of entries from a class of a variable to the next.
    pub fn stride(&self, axis: usize) -> usize {
        axis_stride(&self.axes, axis)
    }

    /// Returns the table in which each variable has only these labels.
    pub fn with_labels(&self, labels: &[&[usize]]) -> Self {
        let axes = self.axes.iter().zip(labels);
        Self::new(axes.map(|(axis, labels)| axis.with_labels(labels)).collect(), &self.entries)
    }

    /// Returns the sum of both tables over the same two variables.
    pub(crate) fn sum_with(&self, other: &Self) -> Self {
        let [(rows, of_row), (columns, of_column)] =
            [0, 1].map(|at| self.axes[at].refine_with(&other.axes[at]));
        let at = |table: &Self, row: u32, column: u32| {
            table.entries[row as usize * table.axes[1].count + column as usize]
        };
        Self::of_pair([rows, columns], |row, column| {
            let ((own_row, row), (own_column, column)) = (of_row[row], of_column[column]);
            at(self, own_row, own_column) + at(other, row, column)
        })
    }
}

fn axis_stride(axes: &[LabelAxis], axis: usize) -> usize {
    axes[axis + 1..].iter().map(|axis| axis.count).product()
}

/// A table that may have more classes than it needs.
struct TableClasses<'a> {
    axes: Vec<LabelAxis>,
    entries: Cow<'a, [f64]>,
}

/// The most classes of which equal ones are found by comparing all.
const FEW: usize = 48;

impl TableClasses<'_> {
    /// Keeps only the classes that labels have, in the order in which the labels have them.
    fn drop_unused(&mut self, axis: usize) {
        let LabelAxis { classes, count } = &self.axes[axis];
        let (mut place, mut used) = (vec![u32::MAX; *count], Vec::new());
        for &class in classes {
            let place = &mut place[class as usize];
            if *place == u32::MAX {
                *place = used.len() as u32;
                used.push(class as usize);
            }
        }
        self.keep_classes(axis, &used, &place);
    }

    /// Joins the classes whose entries are equal.
    fn merge_equal(&mut self, axis: usize) {
        let (count, stride) = (self.axes[axis].count, axis_stride(&self.axes, axis));
        let mut hashes = vec![0; count];
        for all in self.entries.chunks_exact(stride * count) {
            for (known, entries) in hashes.iter_mut().zip(all.chunks_exact(stride)) {
                *known = hashed_on(*known, entries);
            }
        }
        let equal = |a: usize, b: usize| {
            let mut all = self.entries.chunks_exact(stride * count);
            all.all(|all| same_bits(&all[a * stride..][..stride], &all[b * stride..][..stride]))
        };
        let (firsts, place) = find_firsts(&hashes, equal);
        self.keep_classes(axis, &firsts, &place);
    }

    /// Keeps these classes. `place` says for each old class which of them its labels have now.
    fn keep_classes(&mut self, axis: usize, kept: &[usize], place: &[u32]) {
        let (count, stride) = (self.axes[axis].count, axis_stride(&self.axes, axis));
        if kept.len() == count && kept.iter().enumerate().all(|(at, &class)| at == class) {
            return;
        }
        let mut entries = Vec::with_capacity(self.entries.len() / count * kept.len());
        for all in self.entries.chunks_exact(stride * count) {
            kept.iter()
                .for_each(|class| entries.extend_from_slice(&all[class * stride..][..stride]));
        }
        self.entries = Cow::Owned(entries);
        let LabelAxis { classes, count } = &mut self.axes[axis];
        classes.iter_mut().for_each(|class| *class = place[*class as usize]);
        *count = kept.len();
    }
}

/// Returns the first of all that are equal, and for each its index among these. Only those with the same hash are compared.
fn find_firsts(hashes: &[u64], equal: impl Fn(usize, usize) -> bool) -> (Vec<usize>, Vec<u32>) {
    let mut known: HashMap<u64, Vec<u32>> = HashMap::new();
    let (mut firsts, mut of): (Vec<usize>, Vec<u32>) = (Vec::new(), Vec::new());
    for (at, hash) in hashes.iter().enumerate() {
        let next = firsts.len() as u32;
        let is_first = |place: u32| {
            hashes[firsts[place as usize]] == *hash && equal(firsts[place as usize], at)
        };
        let found = if hashes.len() <= FEW {
            (0..next).find(|&place| is_first(place))
        } else {
            let alike = known.entry(*hash).or_default();
            let found = alike.iter().copied().find(|&place| is_first(place));
            if found.is_none() {
                alike.push(next);
            }
            found
        };
        of.push(found.unwrap_or(next));
        if found.is_none() {
            firsts.push(at);
        }
    }
    (firsts, of)
}

/// A content of which equal ones are kept once.
pub trait InternContent: PartialEq {
    /// Returns a hash, which is the same for equal contents.
    fn content_hash(&self) -> u64;
}

impl InternContent for CostTable {
    fn content_hash(&self) -> u64 {
        hash_entries(&self.entries)
    }
}

/// Contents, each equal one once.
#[derive(Clone, Debug)]
pub struct Interned<T> {
    known: HashMap<u64, Vec<Rc<T>>>,
}

/// Tables, each equal one once.
pub(crate) type Tables = Interned<CostTable>;

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self { known: HashMap::new() }
    }
}

impl<T: InternContent> Interned<T> {
    /// Returns the kept content that is equal to this one.
    pub fn intern(&mut self, item: impl Into<Rc<T>>) -> Rc<T> {
        let item = item.into();
        let known = self.known.entry(item.content_hash()).or_default();
        if let Some(known) = known.iter().find(|known| **known == item) {
            return known.clone();
        }
        known.push(item.clone());
        item
    }
}

/// Results that are made from contents, once for all that are equal.
#[derive(Clone, Debug)]
pub(crate) struct MadeOnce<T, M> {
    items: Interned<T>,
    /// The results, by the address of the content that is kept.
    known: HashMap<*const T, Rc<M>>,
}

impl<T, M> Default for MadeOnce<T, M> {
    fn default() -> Self {
        Self { items: Interned::default(), known: HashMap::new() }
    }
}

impl<T: InternContent, M: From<Rc<T>>> MadeOnce<T, M> {
    /// Returns the result made from this content.
    pub(crate) fn find_or_make(&mut self, item: impl Into<Rc<T>>) -> Rc<M> {
        let item = item.into();
        if let Some(known) = self.known.get(&Rc::as_ptr(&item)) {
            return known.clone();
        }
        let item = self.items.intern(item);
        let of = self.known.entry(Rc::as_ptr(&item));
        of.or_insert_with(|| Rc::new(M::from(item))).clone()
    }
}

/// Lowers `least` to `sum` if that is less.
pub(crate) fn lower_to(least: &mut f64, sum: f64) {
    *least = if sum < *least { sum } else { *least };
}

/// Compares numbers bit by bit.
pub(crate) fn same_bits(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// The number of entries that are hashed at once.
const HASHED: usize = 4;

/// Hashes entries by multiply and rotate, a word at a time. A weak hash will do, because tables of equal hash are compared.
pub(crate) fn hash_entries(entries: &[f64]) -> u64 {
    hashed_on(entries.len() as u64, entries)
}

/// Continues a hash with these entries.
fn hashed_on(hash: u64, entries: &[f64]) -> u64 {
    let (whole, last) = entries.as_chunks::<HASHED>();
    let mut hash = hash;
    if !whole.is_empty() {
        let mut lanes = [hash; HASHED];
        for entries in whole {
            for lane in 0..HASHED {
                lanes[lane] = mix_hash(lanes[lane], entries[lane]);
            }
        }
        hash = lanes.into_iter().fold(hash, |hash, lane| mix_hash(hash, f64::from_bits(lane)));
    }
    last.iter().fold(hash, |hash, &entry| mix_hash(hash, entry))
}

/// Continues a hash with one entry.
fn mix_hash(hash: u64, entry: f64) -> u64 {
    (hash.rotate_left(5) ^ entry.to_bits()).wrapping_mul(0x517c_c1b7_2722_0a95)
}

#[cfg(test)]
pub(crate) mod tests {
    use pulp::Arch;

    use super::*;

    #[test]
    fn equal_tables_are_one() {
        let mut tables = Tables::default();
        let mut intern = |entries: [f64; 2]| {
            tables.intern(CostTable::new(vec![LabelAxis::one_per_label(2)], entries.to_vec()))
        };
        let first = intern([1.0, f64::INFINITY]);
        assert!(Rc::ptr_eq(&first, &intern([1.0, f64::INFINITY])));
        assert!(!Rc::ptr_eq(&first, &intern([1.0, 2.0])));
    }

    pub(crate) const ROWS: usize = 12;
    pub(crate) const COLUMNS: usize = 10;

    /// Returns all instruction sets that this processor can be told to use. The results must be the same, bit by bit.
    pub(crate) fn every_arch() -> Vec<Arch> {
        let mut all = vec![Arch::new(), Arch::Scalar];
        #[cfg(target_arch = "x86_64")]
        all.extend(pulp::x86::V3::try_new().map(Arch::V3));
        all
    }

    /// Returns the costs of three different rows and four different columns, with one forbidden pair.
    pub(crate) fn cost(row: usize, column: usize) -> f64 {
        match (row % 3, column * 7 % 4) {
            (1, 2) => f64::INFINITY,
            (row, column) => ((row * 5 + column * 3) % 7) as f64 + 0.1,
        }
    }

    #[test]
    fn labels_that_cost_the_same_are_one_class() {
        let table = CostTable::of_pair([ROWS, COLUMNS].map(LabelAxis::one_per_label), cost);
        assert_eq!((table.axes[0].count, table.axes[1].count, table.entries.len()), (3, 4, 12));
        let (rows, columns) = (
            LabelAxis::new((0..ROWS).map(|row| 2 - row % 3), 5),
            LabelAxis::one_per_label(COLUMNS),
        );
        let by_class = |class: usize, column: usize| cost(5 - class, column);
        let other = CostTable::of_pair([rows, columns], by_class);
        assert_eq!(table, other, "whatever the classes are that it is made of");
        for (row, column) in (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |c| (row, c))) {
            assert_eq!(table.cost_at(row, column), cost(row, column));
        }
        // Rows 0 and 1 are the same in these columns, once the others are gone.
        let whole = [[0.0, 1.0, 2.0], [0.0, 1.0, 5.0], [3.0, 3.0, 3.0]];
        let whole = CostTable::of_pair([3, 3].map(LabelAxis::one_per_label), |row, column| {
            whole[row][column]
        });
        assert_eq!(whole.with_labels(&[&[0, 1, 2], &[0, 1]]).entries, [0.0, 1.0, 3.0, 3.0]);
    }

    #[test]
    fn sums_are_those_of_all_labels() {
        let other = |row: usize, column: usize| (row / 6 * 40 + column / 5 * 9) as f64;
        let [first, second] = [
            CostTable::of_pair([ROWS, COLUMNS].map(LabelAxis::one_per_label), cost),
            CostTable::of_pair([ROWS, COLUMNS].map(LabelAxis::one_per_label), other),
        ];
        let sum = first.sum_with(&second);
        assert_eq!((sum.axes[0].count, sum.axes[1].count), (6, 8));
        for (row, column) in (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |c| (row, c))) {
            assert_eq!(sum.cost_at(row, column), cost(row, column) + other(row, column));
        }
    }

    #[test]
    fn classes_are_found_on_any_axis() {
        let sizes = [4, 60, 3];
        let of = |at: [usize; 3]| (at[0] % 2 * 100 + at[1] % 50 * 3 + at[2] % 2) as f64;
        let all = (0..sizes.iter().product()).map(|at: usize| [at / 180, at / 3 % 60, at % 3]);
        let all: Vec<[usize; 3]> = all.collect();
        let entries: Vec<f64> = all.iter().map(|&at| of(at)).collect();
        let table = CostTable::new(sizes.map(LabelAxis::one_per_label).to_vec(), entries);
        assert_eq!(table.axes.iter().map(|axis| axis.count).collect::<Vec<_>>(), [2, 50, 2]);
        for at in all {
            let place = (0..3).map(|axis| table.axes[axis].class(at[axis]) * table.stride(axis));
            assert_eq!(table.entries[place.sum::<usize>()], of(at));
        }
    }
}
