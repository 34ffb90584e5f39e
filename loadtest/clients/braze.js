// Drives a Millrace server with the npm package braze-api, unchanged: every method of the client for an endpoint that the server has, with its effect read back
// through another one, and the client's way of reporting errors. Every other method must get the server's 404.
//
// MILLRACE_URL and MILLRACE_KEY say where and with which key; MILLRACE_GROUP and MILLRACE_SMS_GROUP are an email and an SMS group of the workspace. Run it on an
// empty workspace, with the package installed: make clients.
'use strict'

const assert = require('node:assert/strict')
const { test, after } = require('node:test')
const { Braze } = require('braze-api')

const { MILLRACE_URL: url, MILLRACE_KEY: key, MILLRACE_GROUP: group, MILLRACE_SMS_GROUP: smsGroup } = process.env
const time = '2026-01-31T09:30:00Z'

// recorded is the client with a note of each method that is called.
const called = new Set()
function recorded(object, path = []) {
  return new Proxy(object, {
    get(target, name) {
      const value = target[name]
      if (typeof value === 'function') called.add([...path, name].join('.'))
      return value !== null && typeof value === 'object' ? recorded(value, [...path, name]) : value
    },
  })
}

// methods are all there are, as paths.
function methods(object, path = []) {
  return Object.entries(object).flatMap(([name, value]) => {
    if (typeof value === 'function') return [[...path, name].join('.')]
    return value !== null && typeof value === 'object' ? methods(value, [...path, name]) : []
  })
}

const plain = new Braze(url, key)
const braze = recorded(plain)

// refused awaits the error that the client makes of an answer.
async function refused(promise, status, message) {
  await assert.rejects(promise, (error) => {
    assert.equal(error.status, status, error.message)
    message instanceof RegExp ? assert.match(error.message, message) : assert.equal(error.message, message)
    return true
  })
}

async function user(id) {
  const { users, message } = await braze.users.export.ids({ external_ids: [id] })
  assert.equal(message, 'success')
  return users[0]
}

const state = async (query) => (await braze.subscription.status.get({ subscription_group_id: group, ...query })).status

// eventually waits for what the server does on its own after it has answered: merges.
async function eventually(check) {
  for (const end = Date.now() + 10_000; ; ) {
    try {
      return await check()
    } catch (error) {
      if (Date.now() > end) throw error
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  }
}

test('users.track and users.export.ids', async () => {
  const body = {
    attributes: [{ external_id: 'ada', first_name: 'Ada', email: 'ada@example.com', plan: 'pro', visits: 3 }],
    events: [{ external_id: 'ada', name: 'signed_up', time, properties: { source: 'web' } }],
    purchases: [{ external_id: 'ada', product_id: 'sku-1', currency: 'USD', price: 12.5, quantity: 2, time }],
  }
  assert.deepEqual(await braze.users.track(body), { attributes_processed: 1, events_processed: 1, purchases_processed: 1, message: 'success' })
  assert.deepEqual(await braze.users.track({ events: [{ external_id: 'ada', name: 'signed_up', time }] }, true), { events_processed: 1, message: 'success' })
  const ada = await user('ada')
  assert.equal(ada.first_name, 'Ada')
  assert.deepEqual(ada.custom_attributes, { plan: 'pro', visits: 3 })
  assert.equal(ada.custom_events[0].count, 2)
  assert.equal(ada.total_revenue, 25)
  const byId = await braze.users.export.ids({ braze_id: ada.svc_id, fields_to_export: ['external_id'] })
  assert.deepEqual(byId.users, [{ external_id: 'ada' }])
  const byEmail = await braze.users.export.ids({ email_address: 'ada@example.com', external_ids: ['nobody'] })
  assert.equal(byEmail.users.length, 1)
  assert.deepEqual(byEmail.invalid_user_ids, ['nobody'])
})

test('users.track reports what it refuses', async () => {
  const partly = await braze.users.track({ attributes: [{ external_id: 'ada', last_name: 'Lovelace' }, { last_name: 'nobody' }] })
  assert.equal(partly.attributes_processed, 1)
  assert.deepEqual(partly.errors.map(({ input_array, index }) => [input_array, index]), [['attributes', 1]])
  await assert.rejects(braze.users.track({ events: [{ external_id: 'ada', time }] }), (error) => {
    assert.equal(error.status, 400)
    assert.match(error.message, /^Valid data must be provided/)
    assert.deepEqual(error.errors, [{ type: "'name' is required", input_array: 'events', index: 0 }])
    return true
  })
  await refused(braze.users.track({ events: Array(76).fill({ external_id: 'ada', name: 'e', time }) }), 400, /^Max Input Length Exceeded/)
})

test('users.alias.new and users.alias.update', async () => {
  const user_aliases = [{ external_id: 'ada', alias_label: 'shop', alias_name: '4711' }, { alias_label: 'cookie', alias_name: '9d2e' }]
  assert.deepEqual(await braze.users.alias.new({ user_aliases }), { aliases_processed: 2, message: 'success' })
  assert.deepEqual((await user('ada')).user_aliases, [{ alias_name: '4711', alias_label: 'shop' }])
  const alias_updates = [{ alias_label: 'shop', old_alias_name: '4711', new_alias_name: '4712' }]
  assert.equal((await braze.users.alias.update({ alias_updates })).message, 'success')
  const { users } = await braze.users.export.ids({ user_aliases: [{ alias_label: 'shop', alias_name: '4712' }] })
  assert.equal(users[0].external_id, 'ada')
  await refused(braze.users.alias.new({ user_aliases: Array.from({ length: 51 }, (_, i) => ({ alias_label: 'l', alias_name: `n${i}` })) }), 400, /max number/)
})

test('users.identify', async () => {
  await braze.users.track({ attributes: [{ user_alias: { alias_label: 'cookie', alias_name: '9d2e' }, page: '/prices' }, { email: 'alan@example.com', x: 1 }] })
  const aliases_to_identify = [{ external_id: 'grace', user_alias: { alias_label: 'cookie', alias_name: '9d2e' } }]
  assert.deepEqual(await braze.users.identify({ aliases_to_identify }), { aliases_processed: 1, message: 'success' })
  const grace = await user('grace')
  assert.deepEqual(grace.custom_attributes, { page: '/prices' })
  assert.deepEqual(grace.user_aliases, [{ alias_name: '9d2e', alias_label: 'cookie' }])
  const emails_to_identify = [{ external_id: 'alan', email: 'alan@example.com', prioritization: ['unidentified', 'most_recently_updated'] }]
  assert.equal((await braze.users.identify({ emails_to_identify })).message, 'success')
  assert.equal((await user('alan')).email, 'alan@example.com')
})

test('users.merge', async () => {
  await braze.users.track({ events: [{ external_id: 'old', name: 'signed_up', time }], attributes: [{ external_id: 'old', home_city: 'London' }] })
  const merge_updates = [{ identifier_to_merge: { external_id: 'old' }, identifier_to_keep: { external_id: 'ada' } }]
  assert.deepEqual(await braze.users.merge({ merge_updates }), { message: 'success' })
  await eventually(async () => {
    const ada = await user('ada')
    assert.equal(ada.custom_events[0].count, 3)
    assert.equal(ada.home_city, 'London')
    assert.equal(await user('old'), undefined)
  })
  await refused(braze.users.merge({ merge_updates: {} }), 400, "'merge_updates' must be an array of objects")
  await refused(braze.users.merge({ merge_updates: Array(51).fill(merge_updates[0]) }), 400, 'a single request may not contain more than 50 merge updates')
})

test('users.external_ids.rename and users.external_ids.remove', async () => {
  const external_id_renames = [{ current_external_id: 'alan', new_external_id: 'turing' }]
  const renamed = await braze.users.external_ids.rename({ external_id_renames })
  assert.deepEqual(renamed, { external_ids: external_id_renames, rename_errors: [], message: 'success' })
  assert.equal((await user('turing')).email, 'alan@example.com')
  assert.equal((await user('alan')).external_id, 'turing', 'the former id leads to the user until it is removed')
  assert.deepEqual(await braze.users.external_ids.remove({ external_ids: ['alan'] }), { removed_ids: ['alan'], removal_errors: [], message: 'success' })
  assert.equal(await user('alan'), undefined)
  const taken = await braze.users.external_ids.rename({ external_id_renames: [{ current_external_id: 'turing', new_external_id: 'ada' }] })
  assert.match(JSON.stringify(taken.rename_errors), /new_external_id is already in use/)
})

test('subscription.status.set, subscription.status.get and subscription.user.status', async () => {
  const set = { subscription_group_id: group, subscription_state: 'subscribed', external_id: ['ada'], email: [] }
  assert.deepEqual(await braze.subscription.status.set(set), { message: 'success' })
  assert.deepEqual(await state({ external_id: 'ada' }), { ada: 'Subscribed' })
  assert.deepEqual(await state({ external_id: ['ada', 'grace', 'nobody'] }), { ada: 'Subscribed', grace: 'Unknown', nobody: 'Unknown' })
  assert.deepEqual(await state({ email: ['ada@example.com'] }), { 'ada@example.com': 'Subscribed' }, 'the state belongs to the address')
  await braze.subscription.status.set({ ...set, external_id: [], email: ['ada@example.com', 'ahead+of@example.com'], subscription_state: 'unsubscribed' })
  assert.deepEqual(await state({ external_id: 'ada' }), { ada: 'Unsubscribed' })
  assert.deepEqual(await state({ email: 'ahead+of@example.com' }), { 'ahead+of@example.com': 'Unsubscribed' })
  const phone = '+14155552671'
  await braze.subscription.status.set({ subscription_group_id: smsGroup, subscription_state: 'subscribed', external_id: [], phone: [phone] })
  assert.deepEqual(await state({ subscription_group_id: smsGroup, phone }), { [phone]: 'Subscribed' })

  const { users, total_count, message } = await braze.subscription.user.status({ external_id: ['ada', 'grace'], limit: 1, offset: 0 })
  assert.equal(message, 'success')
  assert.equal(total_count, 2)
  assert.deepEqual(users, [
    { email: 'ada@example.com', phone: null, external_id: 'ada', subscription_groups: [{ id: group, name: 'News', channel: 'email', status: 'Unsubscribed' }] },
  ])
  await refused(braze.subscription.status.set({ ...set, subscription_group_id: 'unknown' }), 400, 'Invalid subscription group ID')
  await refused(
    braze.subscription.status.get({ subscription_group_id: group, email: 'ada@example.com', phone }),
    400,
    'Either an email address or a phone number should be provided, but not both.',
  )
})

test('v2.subscription.status.set', async () => {
  const subscription_groups = [
    { subscription_group_id: group, subscription_state: 'subscribed', external_ids: ['grace'] },
    { subscription_group_id: group, subscription_state: 'subscribed', emails: ['ada@example.com'] },
  ]
  assert.deepEqual(await braze.v2.subscription.status.set({ subscription_groups }), { message: 'success' })
  assert.deepEqual(await state({ external_id: ['ada', 'grace'] }), { ada: 'Subscribed', grace: 'Subscribed' })
  await refused(braze.v2.subscription.status.set({ subscription_groups: [{ ...subscription_groups[0], external_ids: Array.from({ length: 51 }, String) }] }), 400, /max number/)
})

test('email.blacklist, email.bounce.remove and email.spam.remove', async () => {
  assert.deepEqual(await braze.email.blacklist({ email: ['ada@example.com'] }), { message: 'success' })
  const blocked = await user('ada')
  assert.equal(blocked.email_subscribe, 'unsubscribed')
  assert.ok(Date.parse(blocked.email_hard_bounced_at))
  assert.deepEqual(await braze.email.bounce.remove({ email: 'ada@example.com' }), { message: 'success' })
  assert.equal((await user('ada')).email_hard_bounced_at, undefined)
  await braze.users.track({ attributes: [{ external_id: 'ada', marked_email_as_spam_at: time }] })
  assert.ok((await user('ada')).marked_email_as_spam_at)
  assert.deepEqual(await braze.email.spam.remove({ email: 'ada@example.com' }), { message: 'success' })
  assert.equal((await user('ada')).marked_email_as_spam_at, undefined)
})

test('users.delete', async () => {
  const { deleted, message, invalid_user_ids } = await braze.users.delete({ external_ids: ['turing', 'nobody'] })
  assert.deepEqual([deleted, message, invalid_user_ids], [1, 'success', ['nobody']])
  assert.equal(await user('turing'), undefined)
})

test('a wrong key', async () => {
  const stranger = new Braze(url, 'wrong-key-0123456789')
  await refused(stranger.users.track({ attributes: [{ external_id: 'ada' }] }), 401, 'Invalid API key: wron…')
  await refused(stranger.subscription.user.status({ external_id: 'ada' }), 401, 'Invalid API key: wron…')
})

test('the ES module', async () => {
  const { Braze: Module } = await import('braze-api')
  assert.equal((await new Module(url, key).users.track({ attributes: [{ external_id: 'ada' }] })).message, 'success')
})

// What the server doesn't have, by the first part of the method's name; of users, two exports.
const elsewhere = /^(campaigns|canvas|catalogs|messages|segments|sends|templates|transactional|users\.export\.(global_control_group|segment))\b/

test('every other method gets a 404', async () => {
  for (const path of methods(plain).filter((path) => elsewhere.test(path))) {
    const call = path.split('.').reduce((object, name) => object[name], braze)
    const result = path === 'transactional.v1.campaigns.send' ? call('id', {}) : call({ catalog_name: 'c', item_id: 'i' })
    const answer = typeof result?.next === 'function' ? result.next() : result // the iterator over the items of a catalog
    await refused(Promise.resolve(answer), 404, 'Not Found')
  }
})

after(() => {
  assert.deepEqual(methods(plain).filter((path) => !called.has(path)), [], 'methods that were not called')
})
