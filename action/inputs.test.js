import assert from 'node:assert/strict'
import { test } from 'node:test'

import { inputs } from './inputs.js'

// secretsOf returns what the log must not have if the release comes from a mirror.
function secretsOf(t, mirror) {
  const env = { INPUT_VERSION: 'latest', 'INPUT_SIMULATE-NODES': '0', KARVE_DOWNLOAD_URL: mirror }
  const before = { ...process.env }
  Object.assign(process.env, env)
  t.after(() => { process.env = before })
  return inputs().secrets
}

test('user, password and parameters of a mirror are secret', t => {
  for (const [mirror, want] of [
    ['https://mirror.example/karve', []],
    ['https://token1:x-oauth-basic@mirror.example/karve', ['token1', 'x-oauth-basic']],
    ['https://token1@mirror.example/karve', ['token1']],
    ['https://:pass1@mirror.example/karve', ['pass1']],
    ['https://user1:pass%2F1@mirror.example/karve', ['user1', 'pass%2F1', 'pass/1']],
    ['https://mirror.example/karve?sig=a%2Fb', ['?sig=a%2Fb', '?sig=a/b']],
  ]) {
    const got = secretsOf(t, mirror)
    for (const text of want) {
      assert.ok(got.includes(text), `${mirror}: ${text} is not secret`)
    }
    assert.equal(got.length === 0, want.length === 0, `${mirror}: ${got}`)
  }
})

test('an error about the address of a mirror names the variable and no secret', t => {
  for (const [mirror, want] of [
    ['https://user1:secret%zz@mirror.example/karve', /^KARVE_DOWNLOAD_URL has a percent sign .*%25/],
    ['https://mirror.example/karve?sig=secret%zz', /^KARVE_DOWNLOAD_URL has a percent sign .*%25/],
    ['user1:secret@mirror.example/karve', /^KARVE_DOWNLOAD_URL is no address/],
  ]) {
    assert.throws(() => secretsOf(t, mirror), error => {
      assert.match(error.message, want)
      assert.doesNotMatch(error.message, /secret/)
      return true
    })
  }
})
