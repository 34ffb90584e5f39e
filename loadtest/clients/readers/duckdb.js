// Reads what streams have written with DuckDB, as docs/streams.md shows it, and prints a row a line, in the shape of `millrace export events`.
//
// node duckdb.js parquet|ndjson.zst|ndjson.gz|ndjson DIRECTORY, with the package installed: make clients.
'use strict'

const { DuckDBInstance } = require('@duckdb/node-api')

const [ending, directory] = process.argv.slice(2)
const format = ending.split('.')[0]
const quoted = (text) => `'${text.replaceAll("'", "''")}'`
const source = {
  parquet: `read_parquet(${quoted(directory + '/event_type=*/date=*/*.parquet')}, hive_partitioning = true)`,
  ndjson: `read_json(${quoted(directory + '/event_type=*/date=*/*.' + ending)}, hive_partitioning = true, union_by_name = true,
    columns = {id: 'VARCHAR', type: 'VARCHAR', external_id: 'VARCHAR', name: 'VARCHAR', product_id: 'VARCHAR', currency: 'VARCHAR', price: 'DOUBLE',
      quantity: 'BIGINT', total_minor: 'BIGINT', time: 'TIMESTAMP', accepted_at: 'TIMESTAMP', app_id: 'VARCHAR', properties: 'JSON'})`,
}[format]
// properties that have columns of their own, with the types that DuckDB sees
const own = format === 'parquet' ? `, property_n, property_text, property_f, property_at, typeof(property_n) || ' ' || typeof(property_text) || ' ' || typeof(property_f) || ' ' || typeof(property_at) AS types` : ''

async function main() {
  const connection = await (await DuckDBInstance.create(':memory:')).connect()
  const rows = await connection.runAndReadAll(`
    SELECT id, type, external_id, name, product_id, currency, price, quantity, total_minor, epoch_ms(time) AS time, epoch_ms(accepted_at) AS accepted_at, app_id,
      CAST(properties AS VARCHAR) AS properties, event_type, CAST(date AS VARCHAR) AS date, properties->>'$.nested.a' AS nested${own}
    FROM ${source} ORDER BY id`)
  for (const row of rows.getRowObjectsJson()) console.log(JSON.stringify(row))
}

main()
