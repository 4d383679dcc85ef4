//! Merges values as `kubectl patch` does with a pod by default (strategic merge): maps by key, lists by the
//! merge keys of their items, everything else as a whole.

use serde_json::{Map, Value};

/// Lists of a pod with the keys of their items, as Kubernetes' types declare them.
const KEYED_LISTS: [(&str, &str); 11] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("env", "name"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
    ("ports", "containerPort"),
    ("volumes", "name"),
    ("imagePullSecrets", "name"),
    ("hostAliases", "ip"),
    ("topologySpreadConstraints", "topologyKey"),
    ("resourceClaims", "name"),
];

/// Returns the merge key of a list of a pod; `None` where the list is replaced as a whole.
pub(crate) fn pod_key(list: &str) -> Option<&'static str> {
    KEYED_LISTS.iter().find(|(name, _)| *name == list).map(|(_, key)| *key)
}

/// How items of a list are identified and combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Items {
    /// Identified by this key; items with the same key are merged.
    Merged(&'static str),
    /// Identified by this key; of two items with the same key the overlay's replaces the base's.
    Replaced(&'static str),
}

/// Merges a part of a pod over another one, in place.
pub fn overlay(base: &mut Value, over: &Value) {
    let items_of = |path: &[String]| pod_key(path.last()?).map(Items::Merged);
    Overlay { items_of: &items_of, taken: &mut |_, _| {} }.lay(base, over, &mut Vec::new());
}

/// Settings of a merge.
pub(crate) struct Overlay<'a> {
    /// Returns how the items of the list at a path are identified; `None` where the list is replaced as a
    /// whole.
    pub(crate) items_of: &'a dyn Fn(&[String]) -> Option<Items>,
    /// Called with the path and value of every value of the overlay that is applied.
    pub(crate) taken: &'a mut dyn FnMut(&[String], &Value),
}

impl Overlay<'_> {
    /// Merges `over` into `base`, both at `path`. Null in `over` is ignored.
    pub(crate) fn lay(&mut self, base: &mut Value, over: &Value, path: &mut Vec<String>) {
        match (&mut *base, over) {
            (_, Value::Null) => {}
            (Value::Object(_) | Value::Null, Value::Object(fields)) => {
                if base.is_null() {
                    *base = Map::new().into();
                }
                for (name, value) in fields {
                    if value.is_null() {
                        continue;
                    }
                    path.push(name.clone());
                    self.lay(&mut base[name.as_str()], value, path);
                    path.pop();
                }
            }
            (Value::Array(_) | Value::Null, Value::Array(items)) if (self.items_of)(path).is_some() => {
                if base.is_null() {
                    *base = Value::Array(Vec::new());
                }
                for item in items {
                    self.lay_item(base, item, path);
                }
            }
            (_, over) => {
                *base = over.clone();
                (self.taken)(path, over);
            }
        }
    }

    /// Merges an item into the item with the same key, or appends it.
    fn lay_item(&mut self, list: &mut Value, item: &Value, path: &mut Vec<String>) {
        let how = (self.items_of)(path);
        let (Some(items), Some(Items::Merged(key) | Items::Replaced(key))) = (list.as_array_mut(), how)
        else {
            return;
        };
        let id = &item[key];
        let idx = items.iter().position(|known| known[key] == *id).unwrap_or_else(|| {
            items.push(Value::Null);
            items.len() - 1
        });
        let id = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
        let list_name = path.pop().unwrap_or_default();
        path.push(format!("{list_name}[{id}]"));
        match how {
            Some(Items::Merged(_)) => self.lay(&mut items[idx], item, path),
            _ => {
                items[idx] = item.clone();
                (self.taken)(path, item);
            }
        }
        path.pop();
        path.push(list_name);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::overlay;

    #[test]
    fn maps_are_merged_by_key_and_lists_by_the_keys_of_their_items_or_replaced() {
        let mut pod = json!({
            "containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}],
            "tolerations": [{"key": "a"}], "nodeSelector": {"zone": "a"},
        });
        overlay(
            &mut pod,
            &json!({
                "containers": [
                    {"name": "b", "image": "2"},
                    {"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "3"}]},
                ],
                "tolerations": [{"key": "b"}], "nodeSelector": {"gpu": "h100"},
            }),
        );
        let env = json!([{"name": "X", "value": "3"}, {"name": "Y", "value": "2"}]);
        assert_eq!(
            pod,
            json!({
                "containers": [{"name": "a", "image": "1", "env": env}, {"name": "b", "image": "2"}],
                "tolerations": [{"key": "b"}], "nodeSelector": {"zone": "a", "gpu": "h100"},
            })
        );
    }
}
